"""A model that is in memory already: checked, and taken as it is, with the weights, type and device that it has."""

from __future__ import annotations

import json
from typing import Any

from noback.engines.loading import Opened, lm_kinds
from noback.engines.quantised import prepare_quantised
from noback.errors import InputError, shown
from noback.weights import DTYPES

IN_MEMORY = "in memory"  # what a run calls the model of no name that it was given


def loaded_model(model: Any, tokenizer: Any) -> Opened:
    """A transformers model and its tokenizer, which a run then tunes in place; what cannot be tuned is refused."""
    import transformers

    if not isinstance(model, transformers.PreTrainedModel):
        raise InputError(f"model is a {type(model).__name__}; expected a transformers model, or the name of one")
    if not isinstance(tokenizer, transformers.PreTrainedTokenizerBase):
        given = "none was given" if tokenizer is None else f"a {type(tokenizer).__name__} was given"
        raise InputError(f"a loaded model needs its tokenizer and {given}: train(model=model, tokenizer=tokenizer)")
    if any("lora_" in name for name, _ in model.named_parameters()):
        raise InputError("the model has adapter layers already, of an earlier run or of PEFT; load it anew")
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise InputError(f"the tokenizer knows more tokens ({len(tokenizer)}) than the model")
    prepare_quantised(model)
    return Opened(model.eval(), tokenizer, (), json.loads(model.config.to_json_string()))


def check_loaded(opened: Opened, *, causal: bool, head: bool) -> None:
    """Refuse a masked model for a causal task and the reverse, and a fresh head, which needs a model from its file."""
    named, wanted = type(opened.model).__name__, "causal" if causal else "masked"
    if head:
        raise InputError("adapter 'head' opens a model with a fresh head; give the model's name or folder instead")
    kinds = lm_kinds(named)
    if wanted not in kinds:
        found = f"a {kinds[0]} LM" if kinds else "neither a masked nor a causal LM"
        raise InputError(f"the model is a {named}, {found}, and the task is for {wanted} ones; expected a {wanted} LM")


def name_of(model: Any) -> str:
    """Where a loaded model came from, by its own word."""
    return str(getattr(model, "name_or_path", "") or IN_MEMORY)


def dtype_of(model: Any) -> str:
    """The type of a loaded model's weights by name; one that cannot be tuned, or several, are refused."""
    found = {tensor.dtype for tensor in model.parameters() if tensor.is_floating_point()}
    names = [name for name, dtype in DTYPES.items() if found == {dtype}]
    if not names:
        what = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in found))
        raise InputError(f"the model's weights are {shown(what)}; expected all in float32, or all in bfloat16")
    return names[0]


def device_of(model: Any) -> str:
    """The device of a loaded model by name; one that is spread over several is refused."""
    found = {str(tensor.device) for tensor in model.parameters()}
    if len(found) != 1:
        raise InputError(f"the model is on {', '.join(sorted(found))}; expected one device: model.to('cuda')")
    return found.pop()
