"""What an adapter promises; the model under it: which bytes name it, how much it takes, whether it is quantised."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from noback.errors import InputError

_LONGEST = 2**16  # tokens, of a model that does not say how many it takes


class Adapter(Protocol):
    """What is attached to a model, and which of its tensors are tuned.

    An adapter is a frozen dataclass of options that inherits from this class and writes `attach` and `save`.
    """

    kind: ClassVar[str]  # its name in TOML and on the command line
    portable: ClassVar[bool] = True  # whether its start can be made again anywhere, bit for bit
    tunes_base: ClassVar[bool] = False  # whether the model's own weights move, which quantised ones cannot
    divides: ClassVar[bool] = False  # whether what it tunes can be divided among ranks as the model is
    in_pieces: ClassVar[bool] = True  # whether a part of a tensor tells which of its weights are tuned
    merges: ClassVar[bool] = False  # whether it has `merge`, which gives a model without the adapter
    as_products: ClassVar[bool] = False  # whether low-rank displacements of what it tunes are adapters to a server
    servable: ClassVar[bool] = False  # whether it has `published`: an inference server can hold it beside its model

    @property
    def head_seed(self) -> int | None:
        """The seed of a fresh classification head; None: label words are read."""
        return None

    def attach(self, model: Any, fresh: Collection[str], seed: int) -> dict[str, Tensor]:
        """Attach it; the tuned tensors by the name they have in the model. `fresh` names those of a fresh head."""
        ...

    def masks(self, _tuned: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of each tuned tensor, as the base has it, which weights are tuned; empty: all."""
        return {}

    def save(self, model: Any, folder: str) -> None:
        """Write what was tuned into a folder."""
        ...

    def with_paths(self, _whole: Callable[[str], str]) -> Self:
        """With the paths of its options made absolute."""
        return self


def floating(model: Any) -> dict[str, Tensor]:
    """Every floating-point parameter by its name."""
    return {name: tensor for name, tensor in model.named_parameters() if tensor.is_floating_point()}


def base_tensors(model: Any) -> dict[str, Tensor]:
    """What names a base: its floating-point parameters, or the bytes of all that a quantised one stores."""
    if not is_quantised(model):
        return floating(model)
    return {part: _bytes(tensor) for name, whole in model.state_dict().items() for part, tensor in _parts(name, whole)}


def stored_beside(model: Any) -> dict[str, Tensor]:
    """The bytes of what is stored with the weights and `base_tensors` leaves out: buffers, and tensors of integers."""
    if is_quantised(model):
        return {}
    stored = model.state_dict()
    buffers = {name: stored[name] for name, _ in model.named_buffers() if name in stored}
    whole = {name: tensor for name, tensor in model.named_parameters() if not tensor.is_floating_point()}
    return {name: _bytes(tensor) for name, tensor in (buffers | whole).items()}


def model_limit(model: Any) -> int:
    """How many tokens the model takes, by its configuration."""
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is None:
        return _LONGEST
    # RoBERTa and its kin count positions from the padding index on; their position table says so.
    tables = [part for name, part in model.named_modules() if name.endswith("position_embeddings")]
    padding = next((part.padding_idx for part in tables if getattr(part, "padding_idx", None) is not None), -1)
    return int(positions) - padding - 1


def is_quantised(model: Any) -> bool:
    """Whether transformers loaded or made the model with quantised weights."""
    return bool(getattr(model, "is_quantized", False))


def refuse_quantised(kind: str) -> None:
    """An adapter that tunes the model's own weights has nothing to move in a quantised one."""
    raise InputError(
        f"adapter {kind!r} tunes the model's own weights and these are quantised, so a small move has no place in "
        "them; expected adapter lora or prefix: use --adapter lora, or a model that is not quantised"
    )


def _parts(name: str, tensor: Any) -> Iterator[tuple[str, Tensor]]:
    """The plain tensors that a tensor is made of: some libraries pack numbers and scales into one object."""
    if not isinstance(tensor, Tensor):
        return
    if not hasattr(tensor, "__tensor_flatten__"):
        yield name, tensor
        return
    for part in tensor.__tensor_flatten__()[0]:
        yield from _parts(f"{name}.{part}", getattr(tensor, part))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
