"""Trust: a fast way is used for a kind of work once it has equalled the slow one; what was found is remembered."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

import torch
from torch import Tensor

from noback.distributed import LostRank

T = TypeVar("T")

# How far two ways may differ, as a share of 1 + the largest value.
_SCORES = {"bfloat16": 5e-2, "tf32": 2e-2, "float32": 2e-4}
_OUTPUTS = {torch.bfloat16: 1e-2, torch.float32: 1e-5}  # of one module


class Trust:
    """What was found out about the fast ways of one engine."""

    def __init__(self, say: Callable[[str], None], capturing: Callable[[], bool] = lambda: False) -> None:
        """While `capturing`, nothing can be compared: an unknown kind goes the slow way, and stays unknown."""
        self._say, self._capturing = say, capturing
        self._known: dict[Hashable, bool] = {}

    def refused(self, kind: Hashable) -> bool:
        """Whether the fast way was tried for this kind and differed."""
        return self._known.get(kind) is False

    def check(
        self,
        kind: Hashable,
        fast: Callable[[], T],
        slow: Callable[[], T],
        close: Callable[[T, T], bool],
        otherwise: str = "",
    ) -> bool:
        """Whether to go the fast way: the first of a kind is compared; `otherwise` is said where it differs or fails.

        Running out of memory, or losing another rank, says nothing about a way and is the caller's to answer.
        """
        if kind not in self._known:
            if self._capturing():
                return False
            agrees = _agrees(fast, slow, close)
            self._known[kind] = agrees
            if not agrees and otherwise:
                self._say(otherwise)
        return self._known[kind]


def near(found: Tensor, expected: Tensor, allowed: float) -> bool:
    """Whether two results differ by no more than `allowed` where the expected one is a number."""
    real = torch.isfinite(expected)
    if found.shape != expected.shape or not bool(real.any()):
        return False
    found, expected = found[real], expected[real]
    return bool((found - expected).abs().max() <= allowed * (1 + expected.abs().max()))


def scores_tolerance(tensors: Iterable[Tensor], *, tf32: bool) -> float:
    """How far a model's scores may differ: by the rounding of its weights' type, or of a GPU's products."""
    half = any(tensor.dtype == torch.bfloat16 for tensor in tensors)
    return _SCORES["bfloat16" if half else "tf32" if tf32 else "float32"]


def output_tolerance(output: Tensor) -> float:
    """How far the outputs of one module may differ."""
    return _OUTPUTS.get(output.dtype, _OUTPUTS[torch.float32])


def _agrees(fast: Callable[[], T], slow: Callable[[], T], close: Callable[[T, T], bool]) -> bool:
    try:
        found = fast()
    except (torch.OutOfMemoryError, LostRank):
        raise
    except Exception:  # noqa: BLE001 (a model may do anything; whatever went wrong, the slow way serves)
        return False
    return close(found, slow())
