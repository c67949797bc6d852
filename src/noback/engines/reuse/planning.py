"""Plans of what a causal model computes once a step, and the tally of what was spared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from noback.engines.options import SHARED
from noback.engines.perturbed import TensorNames
from noback.engines.readout import layers_of
from noback.engines.reuse.frozen_layers import frozen_layers
from noback.engines.reuse.inputs import plain_inputs
from noback.engines.reuse.prefix_sharing import attends_to_all, laid_inputs, takes_positions, token_rows
from noback.engines.reuse.prefixes import Layout, layout_that_pays
from noback.tasks import Batch


@dataclass(frozen=True, slots=True)
class Tally:
    """Tokens that an engine was given, each once a point, and how many of them it did not compute again."""

    tokens: int = 0
    cached: int = 0  # another row has the same token after the same prefix, at the same point
    below: int = 0  # of the computed ones, those that passed the frozen layers as the same token of another point
    layers: int = 0  # how many frozen layers there are below the first tuned one

    @property
    def saved(self) -> bool:
        """Whether anything was done once."""
        return self.cached > 0 or self.below > 0

    def __str__(self) -> str:
        text = f"{self.cached:,} of {self.tokens:,} tokens were cached"
        if self.below:
            text += f"; {self.below:,} of the others passed the first {self.layers} layers with another point's"
        return text


@dataclass(frozen=True, slots=True)
class Plan:
    """How a batch is run: what the model takes, and the layers that see one copy of it."""

    inputs: dict[str, Tensor]
    layout: Layout | None  # none: the rows as they are
    above: Sequence[nn.Module] = ()  # the layers above the frozen ones, which alone see a copy for each probe

    def __str__(self) -> str:
        parts = [
            "prefixes" if self.layout is not None else "",
            "the layers below the first tuned one" if self.above else "",
        ]
        return " and ".join(part for part in parts if part)

    @property
    def kind(self) -> tuple[bool, bool, bool]:
        """What must have been seen to be right before the next plan of the kind is trusted."""
        ragged = self.layout is not None and len({len(tree.ids) for tree in self.layout.trees}) > 1
        return self.layout is not None, ragged, bool(self.above)


class Planner:
    """Plans what is done once, for one model."""

    def __init__(self, model: Any, names: TensorNames, share: str) -> None:
        """`share`: a word of `SHARED`."""
        prefixes, layers = SHARED[share]
        causal = takes_positions(model)
        self._prefixes = causal and prefixes and attends_to_all(model)
        first = model.get_input_embeddings().weight if causal else torch.empty((1, 1))
        self._width, self._dtype = first.shape[-1], first.dtype
        found = layers_of(model) if causal and layers else []
        self._below = frozen_layers(model, found, names)
        self._above = found[self._below :] if self._below else []

    def plan(self, batch: Batch, probes: int) -> Plan | None:
        """What to do once for a batch; none: nothing."""
        layout, above = None, self._above if probes > 1 else []
        if self._prefixes and set(batch.inputs) == {"input_ids", "attention_mask"}:
            rows = token_rows(batch)
            layout = layout_that_pays(rows, self._width) if rows else None
        if layout is None:
            return Plan(plain_inputs(batch), None, above) if above else None
        return Plan(laid_inputs(batch, layout, self._dtype), layout, above)

    def count(self, so_far: Tally, batch: Batch, plan: Plan | None, probes: int) -> Tally:
        """The tally with one more forward; nothing is counted where nothing may be shared."""
        if not (self._prefixes or self._below):
            return so_far
        tokens = int(batch.inputs["attention_mask"].sum()) if "attention_mask" in batch.inputs else 0
        cached = plan.layout.cached if plan is not None and plan.layout is not None else 0
        again = (probes - 1) * (tokens - cached) if plan is not None and plan.above else 0
        return Tally(
            so_far.tokens + probes * tokens, so_far.cached + probes * cached, so_far.below + again, self._below
        )
