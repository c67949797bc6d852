"""Whether a server scores as the local engine does: the same prompts, at the same points of the same adapter."""

from __future__ import annotations

import torch
from torch import Tensor

from noback.engines.servers.server import About
from noback.examining.lines import Line
from noback.measuring import outputs
from noback.run import Run
from noback.values import Move, Term

_FAR = 0.1  # of a point: it changes the answers by far more than rounding does
_PART = 0.1  # of that change, by which server and local engine may differ
_ROUNDED = {"float32": 1e-3}  # most by which a log-probability may differ; of other types the part above decides
POINTS = [Move((Term(1, _FAR),)), Move((Term(2, _FAR),))]


def agreement(run: Run, local: Run | str, about: About) -> Line:
    """Label scores beside the local engine's; a constant of each example counts for nothing."""
    if isinstance(local, str):
        return Line("agreement", None, local)
    theirs, ours = (torch.stack([centred(one) for one in outputs(each, 0, POINTS)[0]]) for each in (run, local))
    off, moved = float((theirs - ours).abs().max()), float((ours[0] - ours[1]).abs().max())
    most = min(_PART * moved, _ROUNDED.get(about.dtype, float("inf")))
    figures = {"largest_difference": off, "most": most, "change_by_adapter": moved}
    said = f"label scores differ from the local engine's by at most {off:.2g}; two adapters differ by {moved:.2g}"
    if off <= most:
        return Line("agreement", True, said, None, figures)
    to_do = (
        f"at most {most:.2g} was expected: serve the base model that the run names ({run.config.model}), unquantised "
        f"or name the quantised one; the server says that it serves {about.model}"
    )
    return Line("agreement", False, said, to_do, figures)


def centred(logits: Tensor) -> Tensor:
    """Label logits less their mean over each example's labels, where both are finite."""
    found = logits.masked_fill(~logits.isfinite(), float("nan"))
    return (found - found.nanmean(dim=-1, keepdim=True)).nan_to_num(0.0)
