"""The readout that a run has by default: the exact one where something can be fitted, and none where nothing can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from noback.readouts.exact import ExactReadout


@dataclass(frozen=True, slots=True)
class AutoReadout(ExactReadout):
    """`exact` where task, objective, adapter, engine and model allow a readout; elsewhere the label words alone.

    No run is recorded with it: what a run turned out to have stands in its files.
    """

    kind: ClassVar[str] = "auto"
    if_possible: ClassVar[bool] = True
