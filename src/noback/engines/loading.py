"""Opening a masked LM and its tokenizer: embedded, from a folder, or from the hub; safetensors only, no remote code."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from noback.embedded import MODELS
from noback.errors import InputError
from noback.options import suggestion
from noback.weights import DTYPES

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def open_model(name: str, dtype: str) -> tuple[Any, Any]:
    """The model in the dtype, in evaluation mode, and its tokenizer."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    keep_freed_memory()
    path = str(MODELS.get(name, name))
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        model = transformers.AutoModelForMaskedLM.from_pretrained(path, dtype=DTYPES[dtype], use_safetensors=True)
    except (OSError, ValueError, ImportError) as error:
        where = "the folder" if Path(name).is_dir() else "not an embedded model, not a folder, and on the hub:"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"model {name!r} cannot be opened ({where} {reason}); embedded models: "
            f"{', '.join(MODELS)}{suggestion(name, MODELS)}"
        ) from None
    return model.eval(), tokenizer


def model_limit(model: Any) -> int | None:
    """How many tokens the model takes, where its configuration says so."""
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is None:
        return None
    # RoBERTa counts positions from the padding index on, so that many are lost.
    offset = 0 if model.config.pad_token_id is None else model.config.pad_token_id + 1
    return int(positions) - (offset if "roberta" in model.config.model_type else 0)


def keep_freed_memory() -> None:
    """Ask glibc to keep freed blocks: to hand activations back and fault them in again costs a sixth of a step."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)
    except (OSError, AttributeError):  # another C library: only slower
        return
