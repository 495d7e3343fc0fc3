"""A run of several processes small enough to be killed hundreds of times in a minute, and ways to make it fail."""
