"""A line of an examination: what was looked at, whether it is well, what was found, and what would change it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """One finding."""

    name: str
    passed: bool | None  # None: it could not be looked at
    found: str
    to_do: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)

    def table(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def text(self) -> str:
        """For people."""
        word = {True: "pass", False: "FAIL", None: "-"}[self.passed]
        return f"{word:4}  {self.name:11}  {self.found}" + (f"\n{'':19}-> {self.to_do}" if self.to_do else "")


def line_of(name: str, complaint: str | None, found: str, **figures: Any) -> Line:
    """A line that passes where there is no complaint; a complaint says what to do itself."""
    return Line(name, complaint is None, complaint or found, None, figures)
