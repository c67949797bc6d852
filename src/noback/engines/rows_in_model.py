"""A readout in a model's files: in its decoder's rows, or beside an adapter, which has no place for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from noback.engines.readout import decoder_of
from noback.files import write_whole
from noback.json_text import json_text
from noback.readouts import LabelRows

_TENSORS, _FACTS = "readout.safetensors", "readout.json"
_IN_ROWS = "the rows (and biases) of these tokens in the decoder hold what was fitted on top of the label words"
_UNTIED = "; the decoder is untied from the embeddings, which keep theirs"
_BESIDE = f"add rows and biases of {_TENSORS} to those of these tokens in the decoder, untied from the embeddings"


@contextmanager
def rows_written(model: Any, token_ids: Sequence[int], rows: LabelRows) -> Iterator[bool]:
    """Within, the decoder's rows of some tokens hold a readout too; given is whether it had to be untied for that."""
    decoder = decoder_of(model)
    holders = _holders(model, decoder.bias)
    configs = _configs(model)
    before = [config.tie_word_embeddings for config in configs], model.all_tied_weights_keys
    whole, vector = decoder.weight, decoder.bias
    try:
        yield write_rows(model, token_ids, rows)
    finally:
        decoder.weight = whole
        for module, name in holders:
            module._parameters[name] = vector
        model.all_tied_weights_keys = before[1]
        for config, word in zip(configs, before[0], strict=True):
            config.tie_word_embeddings = word


def write_rows(model: Any, token_ids: Sequence[int], rows: LabelRows) -> bool:
    """Let the decoder's rows of some tokens hold a readout too; whether it had to be untied for that."""
    decoder = decoder_of(model)
    ids, values = torch.tensor(token_ids), torch.from_numpy(rows.values())
    weight = _with_added(decoder.weight, ids, values[:, : rows.shape.width])
    bias = None if decoder.bias is None else _with_added(decoder.bias, ids, values[:, -1])
    tied = len(_holders(model, decoder.weight)) > 1
    if bias is not None:
        for module, name in _holders(model, decoder.bias):  # a copy each: of one that is shared one is stored
            module._parameters[name] = nn.Parameter(bias.detach().clone(), requires_grad=bias.requires_grad)
    decoder.weight = weight
    model.all_tied_weights_keys = {}  # else its library would leave the decoder's own rows out
    for config in _configs(model):
        config.tie_word_embeddings = False
    return tied


def note_rows(folder: Path, facts: Mapping[str, Any], *, untied: bool) -> None:
    """Say in a model's folder what its decoder's rows hold."""
    said = {"format": "noback readout 1", **facts, "untied": untied, "note": _IN_ROWS + _UNTIED * untied}
    write_whole(folder / _FACTS, json_text(said, indent=1))


def save_rows(folder: Path, facts: Mapping[str, Any], rows: LabelRows) -> None:
    """Write a readout beside an adapter: its rows, its biases where there are some, and which tokens they are of."""
    values = torch.from_numpy(rows.values())
    tensors = {"rows": values[:, : rows.shape.width].contiguous()}
    if rows.shape.biased:
        tensors["biases"] = values[:, -1].contiguous()
    save_file(tensors, str(folder / _TENSORS))
    write_whole(folder / _FACTS, json_text({"format": "noback readout 1", **facts, "note": _BESIDE}, indent=1))


def _configs(model: Any) -> list[Any]:
    return [model.config, model.config.get_text_config()]


def _with_added(tensor: Tensor, ids: Tensor, more: Tensor) -> nn.Parameter:
    """A copy in which some rows have more in them, rounded once to the tensor's own type."""
    found = tensor.detach().clone()
    ids = ids.to(found.device)
    found[ids] = (found[ids].double() + more.to(found.device).double()).to(found.dtype)
    return nn.Parameter(found, requires_grad=tensor.requires_grad)


def _holders(model: Any, tensor: Tensor | None) -> list[tuple[nn.Module, str]]:
    """Every module that holds a tensor, and under which name."""
    tables = ((module, name, one) for module in model.modules() for name, one in module._parameters.items())
    return [(module, name) for module, name, one in tables if one is not None and one is tensor]
