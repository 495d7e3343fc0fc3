"""Hypothesis without deadlines: on a machine that is shared they measure the other programs."""

from hypothesis import settings

settings.register_profile("toolkit", deadline=None)
settings.load_profile("toolkit")
