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
    options = {} if Path(path).is_dir() else _hub_options(name)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=False, **options)
        model, report = transformers.AutoModelForMaskedLM.from_pretrained(
            path,
            dtype=DTYPES[dtype],
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            **options,
        )
    except Exception as error:  # noqa: BLE001 (the library raises many kinds; each means that it cannot be opened)
        raise InputError(f"model {name!r} cannot be opened: {_first_line(error)}") from None
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise InputError(
            f"model {name!r} lacks weights of its masked-LM head or body ({missing}), which would be random; "
            "expected a checkpoint of a masked LM with its head"
        )
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise InputError(f"the tokenizer of model {name!r} knows more tokens ({len(tokenizer)}) than the model")
    return model.eval(), tokenizer


def _hub_options(name: str) -> dict[str, Any]:
    """How to open a model of the hub: from its cache where the hub cannot be reached; an unknown name is refused."""
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    known = f"embedded models: {', '.join(MODELS)}{suggestion(name, MODELS)}"
    if name.startswith((".", "/", "~")):
        raise InputError(f"model folder {name!r} does not exist ({known})")
    try:
        huggingface_hub.HfApi().model_info(name, timeout=10)
    except (RepositoryNotFoundError, HFValidationError):
        raise InputError(f"unknown model {name!r}: not embedded, no folder, and not on the hub ({known})") from None
    except Exception:  # noqa: BLE001 (no network, in one of many ways)
        try:
            huggingface_hub.snapshot_download(name, local_files_only=True)
        except Exception:  # noqa: BLE001
            raise InputError(
                f"unknown model {name!r}: not embedded, no folder, and the hub cannot be reached ({known})"
            ) from None
        return {"local_files_only": True}
    return {}


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def model_limit(model: Any) -> int | None:
    """How many tokens the model takes, where its configuration says so."""
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is None:
        return None
    # RoBERTa and its kin count positions from the padding index on; their position table says so.
    tables = [part for name, part in model.named_modules() if name.endswith("position_embeddings")]
    padding = next((part.padding_idx for part in tables if getattr(part, "padding_idx", None) is not None), -1)
    return int(positions) - padding - 1


def keep_freed_memory() -> None:
    """Ask glibc to keep freed blocks: to hand activations back and fault them in again costs a sixth of a step."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)
    except (OSError, AttributeError):  # another C library: only slower
        return
