"""Engines: where a model lives and how a batch is scored at perturbed points."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noback.engines.data_parallel import DataParallel
    from noback.engines.divided import Cuts, divide_adapters, division_of, open_divided
    from noback.engines.engine import Engine
    from noback.engines.generation import Writing, generate
    from noback.engines.identity import check_identity, identity_of
    from noback.engines.kept import Models
    from noback.engines.loaded import IN_MEMORY, check_loaded, device_of, dtype_of, loaded_model, name_of
    from noback.engines.loading import (
        Opened,
        WrongKind,
        chosen_device,
        is_causal,
        keep_freed_memory,
        open_classifier,
        open_model,
        open_tokenizer,
    )
    from noback.engines.local import Local
    from noback.engines.options import AnyEngine, LocalEngine, SglangEngine, VllmEngine
    from noback.engines.outline import open_outline
    from noback.engines.perturbed import Perturbed, TensorNames, materialised
    from noback.engines.readout import by_example, check_numbers, decoder_of, readout_for, readout_of
    from noback.engines.reference import Reference
    from noback.engines.reuse.planning import Tally
    from noback.engines.rows_in_model import note_rows, rows_written, save_rows, write_rows
    from noback.engines.with_rows import WithRows, rows_shape

# Name -> its file. A file is opened when one of its names is used: MeZO needs few of them.
_FILES = {
    "DataParallel": "data_parallel",
    **dict.fromkeys(("Cuts", "divide_adapters", "division_of", "open_divided"), "divided"),
    "Engine": "engine",
    **dict.fromkeys(("Writing", "generate"), "generation"),
    **dict.fromkeys(("check_identity", "identity_of"), "identity"),
    **dict.fromkeys(("Opened", "WrongKind", "chosen_device", "is_causal", "keep_freed_memory"), "loading"),
    **dict.fromkeys(("open_classifier", "open_model", "open_tokenizer"), "loading"),
    **dict.fromkeys(("IN_MEMORY", "check_loaded", "device_of", "dtype_of", "loaded_model", "name_of"), "loaded"),
    **dict.fromkeys(("AnyEngine", "LocalEngine", "SglangEngine", "VllmEngine"), "options"),
    **dict.fromkeys(("Perturbed", "TensorNames", "materialised"), "perturbed"),
    **dict.fromkeys(("by_example", "check_numbers", "decoder_of", "readout_for", "readout_of"), "readout"),
    "Local": "local",
    "Models": "kept",
    "Reference": "reference",
    "open_outline": "outline",
    "Tally": "reuse.planning",
    **dict.fromkeys(("WithRows", "rows_shape"), "with_rows"),
    **dict.fromkeys(("note_rows", "rows_written", "save_rows", "write_rows"), "rows_in_model"),
}

__all__ = [
    "AnyEngine", "Cuts", "DataParallel", "Engine", "IN_MEMORY", "Local", "LocalEngine", "Models", "Opened",
    "Perturbed", "Reference", "SglangEngine", "Tally", "TensorNames", "VllmEngine", "WithRows", "Writing", "WrongKind",
    "by_example", "check_identity", "check_loaded", "check_numbers", "chosen_device", "decoder_of", "device_of",
    "divide_adapters", "division_of", "dtype_of", "generate", "identity_of", "is_causal", "keep_freed_memory",
    "loaded_model", "materialised", "name_of", "note_rows", "open_classifier", "open_divided", "open_model",
    "open_outline", "open_tokenizer", "readout_for", "readout_of", "rows_shape", "rows_written", "save_rows",
    "write_rows",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module 'noback.engines' has no attribute {name!r}")
    return getattr(importlib.import_module(f"noback.engines.{_FILES[name]}"), name)
