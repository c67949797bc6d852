"""Prefix sharing: rows that begin alike lie in one sequence, in which a token attends to its own row only.

A token that several rows begin with has one key and value in each probe. No cache is kept: nothing of one probe can
reach another, nor the next forward.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noback.engines.reuse.inputs import BACK, POSITIONS, TARGETS
from noback.engines.reuse.prefixes import Layout, Tree
from noback.tasks import Batch


def laid_inputs(batch: Batch, layout: Layout, dtype: torch.dtype) -> dict[str, Tensor]:
    """What a forward takes of rows laid out as trees, and where each row's answers are among those that are read."""
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


def takes_positions(model: Any) -> bool:
    """Whether a model writes, and can be told where its tokens stand."""
    writes = getattr(model, "can_generate", lambda: False)()
    return bool(writes) and "position_ids" in inspect.signature(model.forward).parameters


def attends_to_all(model: Any) -> bool:
    """Whether each token attends to all before it: a window would be counted along a tree, not along a row."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return set(kinds) == {"full_attention"}
    return getattr(config, "sliding_window", None) is None


def token_rows(batch: Batch) -> list[list[int]] | None:
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
