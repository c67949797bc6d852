"""noback: fine-tune language models with forward passes only."""

from __future__ import annotations

import importlib
import os
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noback.adapters import Full
    from noback.cli.display import Display
    from noback.config import RunConfig
    from noback.errors import DamagedError, InputError, NobackError
    from noback.estimators import TwoSided
    from noback.mezo import MeZO
    from noback.rules import Sgd
    from noback.run import Result, Run, Score, resume, train
    from noback.tuned import evaluate, export, predict, tuned_run

__version__ = version("noback")

# Idle threads of torch's OpenMP spin for milliseconds on the core that the noise needs next. The library reads this
# when it is loaded, so it serves where noback is imported before torch; elsewhere it changes nothing.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

# Public name -> its room. Rooms are opened when used, so that `import noback` is fast.
_ROOMS = {
    "DamagedError": "errors",
    "Display": "cli.display",
    "Full": "adapters",
    "InputError": "errors",
    "MeZO": "mezo",
    "NobackError": "errors",
    "Result": "run",
    "Run": "run",
    "RunConfig": "config",
    "Score": "run",
    "Sgd": "rules",
    "TwoSided": "estimators",
    "evaluate": "tuned",
    "export": "tuned",
    "predict": "tuned",
    "resume": "run",
    "train": "run",
    "tuned_run": "tuned",
}

__all__ = [
    "DamagedError",
    "Display",
    "Full",
    "InputError",
    "MeZO",
    "NobackError",
    "Result",
    "Run",
    "RunConfig",
    "Score",
    "Sgd",
    "TwoSided",
    "evaluate",
    "export",
    "predict",
    "resume",
    "train",
    "tuned_run",
]


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'noback' has no attribute {name!r}")
    return getattr(importlib.import_module(f"noback.{_ROOMS[name]}"), name)
