"""What can be said of a model by its configuration alone: the linears that an adapter tunes."""

from __future__ import annotations

from noback.adapters import Adapter
from noback.engines.loading import open_form
from noback.errors import InputError


def targets_of(name: str, adapter: Adapter) -> tuple[str, ...] | None:
    """The last names of the linears that an adapter is put beside; None where the model is not at hand."""
    try:
        model = open_form(name, "float32").model
    except InputError:
        return None
    tuned = adapter.attach(model, (), 0)
    return tuple(sorted({linear_of(one) for one in tuned}))


def linear_of(tensor: str) -> str:
    """The last name of the linear that a tensor is of, or an A or B beside."""
    return tensor.partition(".lora_")[0].removesuffix(".weight").rpartition(".")[2]
