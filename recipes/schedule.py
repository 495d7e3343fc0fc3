"""The schedule of a contract, under the name that the training programs know it by (:mod:`toolkit.schedule`)."""

from toolkit.schedule import SCHEDULES, learning_rate, total_steps

__all__ = ["SCHEDULES", "learning_rate", "total_steps"]
