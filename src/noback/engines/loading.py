"""Opening a model and its tokenizer: embedded, from a folder, or from the hub; safetensors only, no remote code."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

from noback.adapters import refuse_quantised
from noback.directions import drawn
from noback.embedded import MODELS
from noback.engines.attention import quiet
from noback.engines.files import checked_config
from noback.engines.quantised import prepare_quantised, quantisation, quantised_by
from noback.errors import InputError
from noback.options import suggestion
from noback.weights import DTYPES

_CPU = torch.device("cpu")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


class WrongKind(InputError):
    """A masked model for a causal task, or the reverse."""


class Opened(NamedTuple):
    """A model in evaluation mode, its tokenizer, and where they come from."""

    model: Any
    tokenizer: Any
    fresh: tuple[str, ...]  # the names of the weights that no checkpoint gave
    config: dict[str, Any]  # the configuration as the model's file has it


def chosen_device(name: str | None) -> torch.device:
    """The device of a name; none: a GPU where there is one, else the CPU."""
    if name is None:
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    device = torch.device(name)
    if device.type == "cpu":
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        seen = f"{count} GPU{'s' if count > 1 else ''}" if count else "no GPU"
        raise InputError(f"device is {name!r}, but torch {torch.__version__} sees {seen} here; use another, or cpu")
    return torch.device("cuda", device.index or 0)


def open_model(
    name: str, dtype: str, device: torch.device = _CPU, *, causal: bool = False, quantise: str | None = None
) -> Opened:
    """A masked or a causal LM in the dtype, quantised where that is asked.

    One of the other kind, or one that lacks weights, is refused.
    """
    import transformers

    kind = "causal" if causal else "masked"
    architecture = transformers.AutoModelForCausalLM if causal else transformers.AutoModelForMaskedLM
    opened = _opened(name, dtype, device, architecture, kind=kind, quantise=quantise)
    if opened.fresh:
        raise InputError(
            f"model {name!r} lacks weights of its {kind}-LM head or body ({', '.join(opened.fresh[:3])}), which would "
            f"be random; {_instead(opened, kind)}"
        )
    prepare_quantised(opened.model)
    return opened


def _instead(opened: Opened, kind: str) -> str:
    """What to use instead of a checkpoint that lacks weights; where it lacks its head alone, another head."""
    body = f"{opened.model.base_model_prefix}."
    headless = not any(name.startswith(body) for name in opened.fresh)
    checkpoint = f"a checkpoint of a {kind} LM with its head"
    if not headless:
        return f"expected {checkpoint}"
    return f"use --adapter head, which puts a fresh classification head on its body, or {checkpoint}"


def is_causal(name: str) -> bool:
    """Whether a model is a causal LM by its configuration; one that could be either is taken for a masked one."""
    import transformers

    path, options, _ = _located(name)
    try:
        config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False, **options)
    except Exception as error:  # noqa: BLE001 (as in `_opened`)
        raise InputError(f"model {name!r} cannot be opened: {_reason(error)}") from None
    _refuse_two_stacks(name, config)
    return _kinds(config) == ["causal"]


def _kinds(config: Any) -> list[str]:
    """Which of masked and causal LM a checkpoint is."""
    tables = _lm_tables()
    named = " ".join(config.architectures or ())
    kinds = [kind for kind, table in tables.items() if set(named.split()) & set(table.values())]
    if not kinds:  # a bare body: a family that has both kinds is one of masked models
        kinds = [kind for kind, table in tables.items() if config.model_type in table][:1]
    return kinds


def lm_kinds(architecture: str) -> list[str]:
    """Which of masked and causal LM a class of the library is."""
    return [kind for kind, table in _lm_tables().items() if architecture in table.values()]


def _lm_tables() -> dict[str, Any]:
    from transformers.models.auto import modeling_auto

    return {
        "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    }


def _check_kind(name: str, config: Any, wanted: str) -> None:
    """Refuse a masked model for a causal task and the reverse; the library would open some, to answer at random."""
    kinds, named = _kinds(config), " ".join(config.architectures or ())
    found = kinds[0] if len(kinds) == 1 else wanted
    if found != wanted:
        raise WrongKind(
            f"model {name!r} is a {found} LM ({named or type(config).__name__}) and the task is for {wanted} ones; "
            f"choose a task for {found} models (noback tasks) or a {wanted} model such as "
            f"{'mini-causal' if wanted == 'causal' else 'mini'}"
        )


def _refuse_two_stacks(name: str, config: Any) -> None:
    """Refuse an encoder with a decoder beside it: it answers from the decoder, which label words do not reach."""
    if getattr(config, "is_encoder_decoder", False):
        named = " ".join(config.architectures or ()) or type(config).__name__
        raise InputError(
            f"model {name!r} is a sequence-to-sequence model ({named}), which noback does not tune; use a masked model "
            "such as mini or FacebookAI/roberta-base, or for a causal task a causal one such as mini-causal or "
            "facebook/opt-125m"
        )


def open_classifier(name: str, dtype: str, labels: Sequence[str], seed: int, device: torch.device = _CPU) -> Opened:
    """The architecture's classifier over a model's body, with a fresh head: a pure function of the seed."""
    import transformers

    named: dict[str, Any] = {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: index for index, label in enumerate(labels)},
    }
    opened = _opened(name, dtype, device, transformers.AutoModelForSequenceClassification, **named)
    model, missing = opened.model, opened.fresh
    body = [name for name in missing if name.startswith(f"{model.base_model_prefix}.") and "pooler" not in name]
    if body or not missing:
        what = f"lacks weights of its body ({', '.join(body[:3])})" if body else "has a trained head already"
        raise InputError(f"model {name!r} {what}; expected a pre-trained model, to which a fresh head is added")
    _draw_head(model, missing, seed)
    return opened


def _opened(
    name: str,
    dtype: str,
    device: torch.device,
    architecture: Any,
    *,
    kind: str | None = None,
    quantise: str | None = None,
    **settings: Any,
) -> Opened:
    """The model and its tokenizer; `kind`: masked or causal."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    keep_freed_memory()
    path, options, config = _located(name)
    method = quantised_by(config)
    if method and quantise:
        raise InputError(f"model {name!r} is quantised already, by {method}; leave out --quantise")
    if method and architecture is transformers.AutoModelForSequenceClassification:
        refuse_quantised("head")
    settings |= quantisation(quantise)
    if device.type != "cpu" and not (method or quantise) and find_spec("accelerate"):
        settings["device_map"] = {"": str(device)}  # straight from the file to the GPU
    try:
        known = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False, **options)
        _refuse_two_stacks(name, known)
        if kind is not None:
            _check_kind(name, known, kind)
        tokenizer = _open_tokenizer(name, path, options)
        with quiet():  # the library would list what does not fit, and warn of a fresh head, which is the point
            model, report = architecture.from_pretrained(
                path,
                dtype=DTYPES[dtype],
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                **options,
                **settings,
            )
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 (the library raises many kinds; each means that it cannot be opened)
        raise InputError(f"model {name!r} cannot be opened: {_reason(error)}") from None
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise InputError(f"the tokenizer of model {name!r} knows more tokens ({len(tokenizer)}) than the model")
    if model.device != device:
        model.to(device)
    return Opened(model.eval(), tokenizer, tuple(sorted(report["missing_keys"])), config)


def make_buffers(model: Any, device: torch.device, *, causal: bool) -> None:
    """Give a model without memory the buffers that its library computes; none of them is in a file."""
    import transformers
    from accelerate import init_empty_weights

    architecture = transformers.AutoModelForCausalLM if causal else transformers.AutoModelForMaskedLM
    with init_empty_weights(include_buffers=False), quiet():
        made = architecture.from_config(model.config, dtype=model.dtype, trust_remote_code=False)
    for name, buffer in made.named_buffers():
        parent, _, attribute = name.rpartition(".")
        model.get_submodule(parent)._buffers[attribute] = buffer.to(device)


def _open_tokenizer(name: str, path: str, options: dict[str, Any]) -> Any:
    """The tokenizer, once it has cut a text; its library's panics are no `Exception`s."""
    import transformers

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=False, **options)
        tokenizer("a")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001
        raise InputError(f"the tokenizer of model {name!r} cannot be opened: {_reason(error)}") from None
    if not isinstance(tokenizer, transformers.PreTrainedTokenizerBase):
        raise InputError(f"the tokenizer of model {name!r} is a {type(tokenizer).__name__}; expected one of one text")
    return tokenizer


def open_form(name: str, dtype: str) -> Opened:
    """A causal model's form without memory, by its configuration, and its tokenizer; its weights need not be there."""
    import transformers

    path, options, config = _located(name)
    try:
        known = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False, **options)
        _refuse_two_stacks(name, known)
        _check_kind(name, known, "causal")
        tokenizer = _open_tokenizer(name, path, options)
        with quiet(), torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(known, dtype=DTYPES[dtype])
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 (as in `_opened`)
        raise InputError(f"model {name!r} cannot be opened: {_reason(error)}") from None
    return Opened(model.eval(), tokenizer, (), config)


def open_tokenizer(name: str) -> Any:
    """A model's tokenizer alone."""
    path, options, _ = _located(name)
    return _open_tokenizer(name, path, options)


def _located(name: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Where a model is, how it is opened there, and its configuration; one whose files are not safe is refused."""
    path = str(MODELS.get(name, name))
    options = {} if Path(path).is_dir() else _hub_options(name)
    return path, options, checked_config(name, path, options)


def _draw_head(model: Any, fresh: Sequence[str], seed: int) -> None:
    """Matrices from noback's own noise at the model's usual scale; biases and norms stay as the library made them."""
    scale = getattr(model.config, "initializer_range", 0.02)
    for name, tensor in model.named_parameters():
        if name in fresh and tensor.dim() > 1:
            with torch.no_grad():
                tensor.copy_(torch.from_numpy(drawn(tuple(tensor.shape), name, f"head {seed}", scale)))


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


def _reason(error: BaseException) -> str:
    """Why the library refuses a model, in a line."""
    text = str(error).strip() or type(error).__name__
    if "ignore_mismatched_sizes" in text:
        return "its weights do not have the shapes that its config.json names"
    unknown = re.match(
        r"Unrecognized configuration class <class '[\w.]*?(\w+)'> for this kind of AutoModel: (\w+)", text
    )
    if unknown is not None:
        return (
            f"transformers has no {unknown[2]} for a model with {unknown[1]}; use another, such as mini or mini-causal"
        )
    return " ".join(text.splitlines()[:2])


def keep_freed_memory() -> None:
    """Ask glibc to keep freed blocks: to hand activations back and fault them in again costs a sixth of a step."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)
    except (OSError, AttributeError):  # another C library: only slower
        return
