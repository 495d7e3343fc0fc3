"""``toolkit check``: what is wrong with launch scripts and hostfiles, read without running anything."""
