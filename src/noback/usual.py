"""The usual learning rate and eps, in one table: by what is tuned, how slopes are measured, the rule and the type."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

AUTO: Final = "auto"  # an lr that is found before step 0 (`screening.py`)
Rate = float | Literal["auto"]
ANY = "*"


class Usual(NamedTuple):
    """A row: for which adapter, estimator, rule and dtype (`*`: any) which numbers; None leaves it to a later row."""

    adapter: str
    estimator: str
    rule: str
    dtype: str
    lr: float | None
    eps: float | None


# The first row that fits and has the number counts. Measured on the embedded model (docs/guides/recipes.md).
USUAL = (
    # Back-propagation, for `noback baseline --method adam`: common choices for models of this size.
    Usual("lora", "backprop", "adam", ANY, lr=1e-3, eps=None),
    Usual("prefix", "backprop", "adam", ANY, lr=1e-2, eps=None),
    Usual(ANY, "backprop", "adam", ANY, lr=1e-4, eps=None),
    # A step of Adam is about lr a weight, whatever the slopes.
    Usual("lora", ANY, "adam", ANY, lr=1e-3, eps=None),
    Usual("prefix", ANY, "adam", ANY, lr=1e-2, eps=None),
    Usual(ANY, ANY, "adam", ANY, lr=1e-5, eps=None),
    Usual("lora", ANY, "adamm", ANY, lr=1e-3, eps=None),
    Usual("prefix", ANY, "adamm", ANY, lr=1e-2, eps=None),
    Usual(ANY, ANY, "adamm", ANY, lr=1e-5, eps=None),
    # One-sided slopes are in units of the losses' spread.
    Usual("lora", "one_sided", ANY, ANY, lr=1e-2, eps=None),
    Usual("prefix", "one_sided", ANY, ANY, lr=1e-1, eps=None),
    Usual(ANY, "one_sided", ANY, ANY, lr=1e-3, eps=None),
    # Normalised slopes have the size 1.
    Usual("lora", ANY, "normalised", ANY, lr=2e-3, eps=None),
    Usual("prefix", ANY, "normalised", ANY, lr=5e-2, eps=None),
    Usual(ANY, ANY, "normalised", ANY, lr=1e-4, eps=None),
    Usual("lora", ANY, ANY, "bfloat16", lr=5e-4, eps=1e-2),
    Usual("lora", ANY, ANY, ANY, lr=5e-4, eps=1e-3),
    Usual("prefix", ANY, ANY, "bfloat16", lr=5e-2, eps=1e-1),
    Usual("prefix", ANY, ANY, ANY, lr=5e-2, eps=3e-2),
    Usual(ANY, ANY, ANY, ANY, lr=2e-5, eps=1e-3),
)


def usual_lr(adapter: str, estimator: str, rule: str, dtype: str) -> float:
    """The learning rate to begin with."""
    return next(row.lr for row in _rows(adapter, estimator, rule, dtype) if row.lr is not None)


def usual_eps(adapter: str, estimator: str, rule: str, dtype: str) -> float:
    """How far from the weights losses are taken, to begin with."""
    return next(row.eps for row in _rows(adapter, estimator, rule, dtype) if row.eps is not None)


def usual_text(number: str) -> str:
    """The usual `lr` or `eps` in words, for the help of its option."""
    rows = [(row, getattr(row, number)) for row in USUAL if row.estimator != "backprop"]
    said = [(" ".join(part for part in row[:4] if part != ANY), value) for row, value in rows if value is not None]
    others = ", ".join(f"with {words} {value:g}" for words, value in said if words)
    return f"the usual one, {said[-1][1]:g}, {others}"


def _rows(*asked: str) -> list[Usual]:
    return [row for row in USUAL if all(part in (ANY, word) for part, word in zip(row, asked, strict=False))]
