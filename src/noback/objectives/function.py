"""Any Python function as the objective: given in code or as `module:function`, imported when first needed."""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from noback.errors import InputError
from noback.options import one_of, option

READS = ("logits", "text")


class ObjectiveError(InputError):
    """A user's function did not give a number."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of (label logits [examples, labels], gold [examples]) that returns one number, lower is better.

    With reads="text" it is given two lists of texts instead: what the model answered and what is right. A replay
    needs the journal alone and never calls it.
    """

    kind: ClassVar[str] = "function"

    function: str = option("", "the function as module:function; in Python, the function itself")
    reads: str = option("logits", "what it is given: label logits and gold, or texts", choices=READS)
    smooth: bool = option(False, "whether any change of the weights changes it")

    def __post_init__(self) -> None:
        one_of("objective.reads", self.reads, READS)
        if callable(self.function):
            object.__setattr__(self, "function", _name_of(self.function))
        module, colon, name = self.function.partition(":")
        if not (module and colon and name):
            raise InputError(f"objective function {self.function!r} is no module:function, such as my_objectives:cost")

    @classmethod
    def of_text(cls, text: str) -> dict[str, Any] | None:
        """The table of options that `module:function` stands for."""
        return {"kind": cls.kind, "function": text} if ":" in text else None

    def check(self) -> None:
        """Refuse a function that cannot be imported."""
        _imported(self.function)

    def loss(self, label_logits: Tensor, gold: Tensor, texts: Sequence[str]) -> float:
        """What the function returns, checked; `texts` holds the text of each label."""
        function = _imported(self.function)
        given: tuple[Any, Any] = _copies(label_logits, gold)  # what it writes into them is its own affair
        if self.reads == "text":
            given = [texts[i] for i in label_logits.argmax(dim=1).tolist()], [texts[i] for i in gold.tolist()]
        try:
            with torch.no_grad(), contextlib.redirect_stdout(sys.stderr):
                value = function(*given)
        except (Exception, SystemExit) as error:  # noqa: BLE001 (the user's function: whatever it raises is told)
            frame = traceback.extract_tb(error.__traceback__)[-1]
            raise ObjectiveError(
                f"objective function {self.function!r} raised {type(error).__name__}: {error} "
                f"({Path(frame.filename).name}, line {frame.lineno})"
            ) from None
        return self._number(value)

    def _number(self, value: Any) -> float:
        shape = tuple(getattr(value, "shape", ()))
        if math.prod(shape) != 1:
            raise ObjectiveError(
                f"objective function {self.function!r} returned shape {shape}; expected one number for the whole "
                "batch: reduce it, for example with .mean()"
            )
        try:
            number = float(value.item() if hasattr(value, "item") else value)
        except (TypeError, ValueError, RuntimeError):
            raise ObjectiveError(
                f"objective function {self.function!r} returned {type(value).__name__} {value!r:.60}; expected a number"
            ) from None
        if not math.isfinite(number):
            raise ObjectiveError(f"objective function {self.function!r} returned {number}; expected a finite number")
        return number


@torch.inference_mode(mode=False)
def _copies(*tensors: Tensor) -> Any:
    """Ordinary tensors of the same values."""
    return tuple(tensor.detach().clone() for tensor in tensors)


def _name_of(function: Callable[..., Any]) -> str:
    """The name under which a resumed run will find the function again."""
    name = f"{function.__module__}:{getattr(function, '__qualname__', '')}"
    if _found(name) is not function:
        raise InputError(
            f"objective function {name!r} has no name of its own in a module, so a resumed run could not find it: "
            "define it with `def` at the top level of a module (or of the script or notebook)"
        )
    return name


def _found(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _imported(name: str) -> Callable[..., Any]:
    module = name.partition(":")[0]
    if module not in sys.modules:
        here = str(Path.cwd())
        if here not in sys.path:  # a user's own file lies where the command is run
            sys.path.insert(0, here)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                importlib.import_module(module)
        except (Exception, SystemExit) as error:  # noqa: BLE001 (it is the user's module)
            raise InputError(
                f"objective function {name!r} cannot be imported: {type(error).__name__}: {error} "
                f"(looked in {here} and where Python's packages are)"
            ) from None
    found = _found(name)
    if not callable(found):
        raise InputError(f"module {module!r} has no function {name.partition(':')[2]!r}")
    return found  # type: ignore[no-any-return]
