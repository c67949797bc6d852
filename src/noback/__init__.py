"""noback: fine-tune language models with forward passes only."""

from __future__ import annotations

import importlib
import os
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from noback.adapters import Full as Full
    from noback.adapters import Head as Head
    from noback.adapters import Lora as Lora
    from noback.adapters import Prefix as Prefix
    from noback.adapters import Sparse as Sparse
    from noback.cli.display import Display as Display
    from noback.config import RunConfig as RunConfig
    from noback.directions import KeptColumns as KeptColumns
    from noback.directions import LowRank as LowRank
    from noback.directions import Normal as Normal
    from noback.directions import Rademacher as Rademacher
    from noback.directions import Rank1 as Rank1
    from noback.engines import LocalEngine as LocalEngine
    from noback.engines import SglangEngine as SglangEngine
    from noback.engines import VllmEngine as VllmEngine
    from noback.errors import DamagedError as DamagedError
    from noback.errors import InputError as InputError
    from noback.errors import NobackError as NobackError
    from noback.estimators import AdaptTies as AdaptTies
    from noback.estimators import CurvatureWeighted as CurvatureWeighted
    from noback.estimators import OneSided as OneSided
    from noback.estimators import TwoSided as TwoSided
    from noback.events import Event as Event
    from noback.functions import baseline as baseline
    from noback.functions import compare as compare
    from noback.functions import epsilon as epsilon
    from noback.functions import resume as resume
    from noback.functions import sweep as sweep
    from noback.functions import train as train
    from noback.history import History as History
    from noback.mezo import MeZO as MeZO
    from noback.objectives import Accuracy as Accuracy
    from noback.objectives import CrossEntropy as CrossEntropy
    from noback.objectives import Function as Function
    from noback.objectives import LanguageModel as LanguageModel
    from noback.objectives import MacroF1 as MacroF1
    from noback.objectives import Reward as Reward
    from noback.readouts import AutoReadout as AutoReadout
    from noback.readouts import ExactReadout as ExactReadout
    from noback.reporting import report as report
    from noback.result import Result as Result
    from noback.rules import Adam as Adam
    from noback.rules import AdaMM as AdaMM
    from noback.rules import Momentum as Momentum
    from noback.rules import Normalised as Normalised
    from noback.rules import Sgd as Sgd
    from noback.run import Run as Run
    from noback.tuned import evaluate as evaluate
    from noback.tuned import export as export
    from noback.tuned import generate as generate
    from noback.tuned import predict as predict
    from noback.tuned import tuned_run as tuned_run
    from noback.values import Score as Score

__version__ = version("noback")

# Idle threads of torch's OpenMP spin for milliseconds on cores that the noise's threads, or another process, could use:
# on two cores shared with other processes a step takes 2.5 to 3.5 times as long without this line. libgomp reads it
# when it is loaded, so it serves where noback is imported before torch; elsewhere it changes nothing.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

# Public name -> its room. Rooms are opened when used, so that `import noback` is fast.
_ROOMS = {
    "Accuracy": "objectives",
    "AdaptTies": "estimators",
    "CrossEntropy": "objectives",
    "DamagedError": "errors",
    "Display": "cli.display",
    "Event": "events",
    "Full": "adapters",
    "Function": "objectives",
    "Head": "adapters",
    "History": "history",
    "InputError": "errors",
    "LanguageModel": "objectives",
    "LocalEngine": "engines",
    "Lora": "adapters",
    "MacroF1": "objectives",
    "MeZO": "mezo",
    "NobackError": "errors",
    "Prefix": "adapters",
    "Result": "result",
    "Reward": "objectives",
    "Run": "run",
    "RunConfig": "config",
    "Score": "values",
    "SglangEngine": "engines",
    "Sparse": "adapters",
    "VllmEngine": "engines",
    "baseline": "functions",
    "compare": "functions",
    "epsilon": "functions",
    "evaluate": "tuned",
    "export": "tuned",
    "generate": "tuned",
    "predict": "tuned",
    "report": "reporting",
    "resume": "functions",
    "sweep": "functions",
    "train": "functions",
    "tuned_run": "tuned",
}
# each kind is public
_METHODS = {"estimators": "AnyEstimator", "rules": "AnyRule", "directions": "AnyNoise", "readouts": "AnyReadout"}


if not TYPE_CHECKING:  # a type checker would take every name for a public one, of any type

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            return sorted([*_ROOMS, *_methods()])
        if name in _ROOMS:
            return getattr(importlib.import_module(f"noback.{_ROOMS[name]}"), name)
        if name[:1].isupper() and name in (methods := _methods()):
            return methods[name]
        raise AttributeError(f"module 'noback' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What Tab shows: the public names, and the version."""
    return [*_ROOMS, *_methods(), "__all__", "__doc__", "__version__"]


def _methods() -> dict[str, type[Any]]:
    """The estimators, rules, noise families and readouts by the names of their classes."""
    unions = (getattr(importlib.import_module(f"noback.{room}"), union) for room, union in _METHODS.items())
    return {kind.__name__: kind for union in unions for kind in get_args(union) or (union,)}
