"""noback: fine-tune language models with forward passes only."""

from __future__ import annotations

import importlib
import os
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noback.adapters import Full, Head, Lora, Prefix
    from noback.cli.display import Display
    from noback.config import RunConfig
    from noback.errors import DamagedError, InputError, NobackError
    from noback.estimators import AdaptTies, TwoSided
    from noback.mezo import MeZO
    from noback.objectives import Accuracy, CrossEntropy, Function, LanguageModel, MacroF1, Reward
    from noback.result import Result
    from noback.rules import Sgd
    from noback.run import Run
    from noback.training import resume, train
    from noback.tuned import evaluate, export, generate, predict, tuned_run
    from noback.values import Score

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
    "Full": "adapters",
    "Function": "objectives",
    "Head": "adapters",
    "InputError": "errors",
    "LanguageModel": "objectives",
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
    "Sgd": "rules",
    "TwoSided": "estimators",
    "evaluate": "tuned",
    "export": "tuned",
    "generate": "tuned",
    "predict": "tuned",
    "resume": "training",
    "train": "training",
    "tuned_run": "tuned",
}

__all__ = [
    "Accuracy",
    "AdaptTies",
    "CrossEntropy",
    "DamagedError",
    "Display",
    "Full",
    "Function",
    "Head",
    "InputError",
    "LanguageModel",
    "Lora",
    "MacroF1",
    "MeZO",
    "NobackError",
    "Prefix",
    "Result",
    "Reward",
    "Run",
    "RunConfig",
    "Score",
    "Sgd",
    "TwoSided",
    "evaluate",
    "export",
    "generate",
    "predict",
    "resume",
    "train",
    "tuned_run",
]


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'noback' has no attribute {name!r}")
    return getattr(importlib.import_module(f"noback.{_ROOMS[name]}"), name)
