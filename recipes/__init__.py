"""Training programs and the recipes that they run."""
