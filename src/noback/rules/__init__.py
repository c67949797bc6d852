"""Rules: how slopes become a move of the weights. A rule is one file and one row."""

from noback.rules.adam import Adam as Adam
from noback.rules.adamm import AdaMM as AdaMM
from noback.rules.base import Rule, coefficients_of, decay_at, lr_at, move_of
from noback.rules.momentum import Momentum as Momentum
from noback.rules.normalised import Normalised as Normalised
from noback.rules.schedule import SCHEDULES
from noback.rules.sgd import Sgd as Sgd

AnyRule = (
    Sgd
    | Momentum
    | Normalised
    | Adam
    | AdaMM
)  # fmt: skip

__all__ = ["SCHEDULES", "AnyRule", "Rule", "coefficients_of", "decay_at", "lr_at", "move_of"]
