"""toolkit check: launch scripts and hostfiles."""
