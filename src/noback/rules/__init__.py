"""Rules: how an estimate becomes a move of the weights."""

from noback.rules.schedule import SCHEDULES
from noback.rules.sgd import Pace, Sgd

__all__ = ["SCHEDULES", "Pace", "Sgd"]
