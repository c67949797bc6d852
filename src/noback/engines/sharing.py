"""What of a causal model's step is done once: tokens that rows share, and the layers below the first tuned one.

A token that several rows begin with has one key and value in each probe, because the rows lie in one sequence in which
a token attends to its own row only. No cache is kept: nothing of one probe can reach another, nor the next forward.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noback.engines.displaced import TensorNames
from noback.engines.prefixes import Layout, Tree, layout_that_pays
from noback.engines.readout import layers_of
from noback.engines.units import mapped, replaced_forward
from noback.tasks import Batch

# What may be done once, by the word of the option: prefixes, layers.
SHARED = {"all": (True, True), "prefixes": (True, False), "layers": (False, True), "none": (False, False)}
POSITIONS, TARGETS, BACK = "mask_positions", "targets", "back"  # beside the model's own inputs


@dataclass(frozen=True, slots=True)
class Tally:
    """Tokens that an engine was given, each once a point, and how many of them it did not compute again."""

    tokens: int = 0
    cached: int = 0  # another row has the same token after the same prefix, at the same point
    below: int = 0  # of the computed ones, those that passed the lower layers as the same token of another point
    layers: int = 0  # how many lower layers there are: those below the first tuned one

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
    below: int  # layers that are run once for all probes

    def __str__(self) -> str:
        parts = [
            "prefixes" if self.layout is not None else "",
            "the layers below the first tuned one" if self.below else "",
        ]
        return " and ".join(part for part in parts if part)

    @property
    def kind(self) -> tuple[bool, bool, bool]:
        """What must have been seen to be right before the next plan of the kind is trusted."""
        ragged = self.layout is not None and len({len(tree.ids) for tree in self.layout.trees}) > 1
        return self.layout is not None, ragged, self.below > 0


class Sharing:
    """Plans what is done once, for one model."""

    def __init__(self, model: Any, names: TensorNames, share: str) -> None:
        """`share`: a word of `SHARED`."""
        prefixes, layers = SHARED[share]
        causal = is_causal(model)
        self._prefixes = causal and prefixes and sees_all(model)
        first = model.get_input_embeddings().weight if causal else torch.empty((1, 1))
        self._width, self._dtype = first.shape[-1], first.dtype
        found = layers_of(model) if causal and layers else []
        self.layers, self._below = found, _untuned(model, found, names)

    @property
    def active(self) -> bool:
        """Whether anything may be done once."""
        return self._prefixes or self._below > 0

    def plan(self, batch: Batch, probes: int) -> Plan | None:
        """What to do once for a batch; none: nothing."""
        layout, below = None, self._below if probes > 1 else 0
        if self._prefixes and set(batch.inputs) == {"input_ids", "attention_mask"}:
            rows = _rows(batch)
            layout = layout_that_pays(rows, self._width) if rows else None
        if layout is None:
            return Plan(plain_inputs(batch), None, below) if below else None
        return Plan(laid_inputs(batch, layout, self._dtype), layout, below)

    def count(self, so_far: Tally, batch: Batch, plan: Plan | None, probes: int) -> Tally:
        """The tally with one more forward; nothing is counted where nothing may be shared."""
        if not self.active:
            return so_far
        tokens = int(batch.inputs["attention_mask"].sum()) if "attention_mask" in batch.inputs else 0
        cached = plan.layout.cached if plan is not None and plan.layout is not None else 0
        below = plan.below if plan is not None else 0
        again = (probes - 1) * (tokens - cached) if below else 0
        return Tally(
            so_far.tokens + probes * tokens, so_far.cached + probes * cached, so_far.below + again, self._below
        )


def plain_inputs(batch: Batch) -> dict[str, Tensor]:
    """What a forward takes: the model's own inputs, where its answers are read, and the tokens that are scored."""
    inputs = {**batch.inputs, POSITIONS: batch.mask_positions}
    if batch.candidates is not None:
        inputs[TARGETS] = batch.candidates.targets
    return inputs


def laid_inputs(batch: Batch, layout: Layout, dtype: torch.dtype) -> dict[str, Tensor]:
    """The same of rows that are laid out as trees, and where to find each row's answers among those that are read."""
    shape = (len(layout.trees), layout.longest)
    ids, depths = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    for index, tree in enumerate(layout.trees):
        ids[index, : len(tree.ids)] = torch.tensor(tree.ids)
        depths[index, : len(tree.ids)] = torch.tensor(tree.depths)
    seen = torch.stack([_seen(tree, layout.longest) for tree in layout.trees])
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)[:, None]
    positions, back = _reading(batch, layout)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": depths, POSITIONS: positions, BACK: back}
    if batch.candidates is not None:
        inputs[TARGETS] = batch.candidates.targets
    return inputs


def by_row(logits: Tensor, back: Tensor | None, probes: int) -> Tensor:
    """Logits [probes x trees, positions, outputs] as [probes x rows, positions of a row, outputs]."""
    if back is None:
        return logits
    return logits.reshape(probes, -1, logits.shape[-1])[:, back].flatten(0, 1)


@contextmanager
def widened(layers: Sequence[nn.Module], rows: int, probes: int) -> Iterator[None]:
    """Within, these layers take what is of one copy of the batch as that of all probes, probe-major."""

    def widen(value: Any) -> Any:
        # Masks and positions come to every layer, each time of one copy.
        if not (isinstance(value, Tensor) and value.dim() > 1 and len(value) == rows):
            return value
        rest = value.shape[1:]
        return value.expand(probes, *rest) if rows == 1 else value.repeat(probes, *(1 for _ in rest))

    def wide(forward: Any) -> Any:
        def taken(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = mapped(widen, (args, kwargs))
            return forward(*args, **kwargs)

        return taken

    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(replaced_forward(layer, wide(layer.forward)))
        yield


def is_causal(model: Any) -> bool:
    """Whether a model is one that writes, and can be told where its tokens stand."""
    writes = getattr(model, "can_generate", lambda: False)()
    return bool(writes) and "position_ids" in inspect.signature(model.forward).parameters


def sees_all(model: Any) -> bool:
    """Whether each token attends to all before it: a window would be counted along a tree, not along a row."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return set(kinds) == {"full_attention"}
    return getattr(config, "sliding_window", None) is None


def _untuned(model: Any, layers: Sequence[nn.Module], names: TensorNames) -> int:
    """How many layers, from the first, are the same model at every point."""
    if model.get_input_embeddings().weight in names if layers else True:
        return 0
    tuned = (index for index, layer in enumerate(layers) if any(tensor in names for tensor in layer.parameters()))
    return next(tuned, 0)  # where no layer is tuned, what comes after them is: the plain way serves


def _rows(batch: Batch) -> list[list[int]] | None:
    """The tokens of each row; none where they are not padded on the right only."""
    attention = batch.inputs["attention_mask"]
    lengths = attention.sum(dim=1)
    if not torch.equal(attention.bool(), torch.arange(attention.shape[1]) < lengths[:, None]):
        return None
    return [row[:length] for row, length in zip(batch.inputs["input_ids"].tolist(), lengths.tolist(), strict=True)]


def _seen(tree: Tree, length: int) -> Tensor:
    """Which tokens [length] each token [length] attends to: those of its own row, up to itself."""
    seen = np.eye(length, dtype=np.bool_)  # padding looks at itself, so that no softmax is empty
    done = 0
    for places in tree.places:  # what a row shares with one before, then its own tokens, which follow one another
        end = places[-1] + 1
        if end > done:
            own = end - done
            seen[done:end, np.array(places[:-own], dtype=np.int64)] = True
            seen[done:end, done:end] = np.tri(own, dtype=np.bool_)
            done = end
    return torch.from_numpy(seen)


def _reading(batch: Batch, layout: Layout) -> tuple[Tensor, Tensor]:
    """Where the head looks [trees, positions], and for each row which of these [rows, positions] are its own."""
    wanted = batch.mask_positions.view(batch.rows, -1).tolist()
    asked: list[list[int]] = []
    found: Mapping[int, list[tuple[int, int]]] = {row: [] for row in range(batch.rows)}
    for index, tree in enumerate(layout.trees):
        slots: dict[int, int] = {}
        for row, places in zip(tree.rows, tree.places, strict=True):
            for position in wanted[row]:
                slot = slots.setdefault(places[position], len(slots))
                found[row].append((index, slot))
        asked.append(list(slots))
    most = max(map(len, asked))
    positions = torch.tensor([one + [0] * (most - len(one)) for one in asked])
    return positions, torch.tensor([[index * most + slot for index, slot in found[row]] for row in range(batch.rows)])
