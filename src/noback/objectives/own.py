"""A user's own function by its name: found when first needed, called, and what it returns checked."""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from noback.errors import InputError
from noback.objectives.base import Objective


class ObjectiveError(InputError):
    """A user's function did not give a number."""


def own_name(function: str | Callable[..., Any]) -> str:
    """The function as `module:function`; one that is given itself must be there under its name."""
    name = _name_of(function) if callable(function) else function
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise InputError(f"objective function {name!r} is no module:function, such as my_objectives:cost")
    return name


def refuse_code(objective: Objective, where: str, *, trust: bool) -> None:
    """Refuse to call a function that a run's folder names, unless the user trusts it: it may be someone else's."""
    if objective.function and not trust:
        module, _, function = objective.function.partition(":")
        raise InputError(
            f"{where} names the function {function!r} of module {module!r}, which would be imported and called here; "
            "if the folder is yours, or you have read that module, say so with --trust (in Python trust=True)"
        )


def imported(name: str) -> Callable[..., Any]:
    """The function of a name; one that cannot be imported is refused."""
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


def number_from(name: str, given: tuple[Any, ...], one: str) -> float:
    """What the function of a name returns for what it is given; `one` says what number was expected."""
    function = imported(name)
    try:
        with torch.no_grad(), contextlib.redirect_stdout(sys.stderr):
            value = function(*given)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (the user's function: whatever it raises is told)
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise ObjectiveError(
            f"objective function {name!r} raised {type(error).__name__}: {error} "
            f"({Path(frame.filename).name}, line {frame.lineno})"
        ) from None
    return _number(name, value, one)


def _number(name: str, value: Any, one: str) -> float:
    shape = tuple(getattr(value, "shape", ()))
    if math.prod(shape) != 1:
        raise ObjectiveError(f"objective function {name!r} returned shape {shape}; expected {one}")
    try:
        number = float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        raise ObjectiveError(
            f"objective function {name!r} returned {type(value).__name__} {value!r:.60}; expected a number"
        ) from None
    if not math.isfinite(number):
        raise ObjectiveError(f"objective function {name!r} returned {number}; expected a finite number")
    return number


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
