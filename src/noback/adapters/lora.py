"""LoRA through PEFT: small matrices beside frozen linears, saved as an ordinary PEFT adapter."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from noback.adapters.base import Adapter
from noback.directions import drawn
from noback.errors import InputError
from noback.json_text import json_text
from noback.options import option, positive, suggestion, whole

GROUPS = ("attention", "attention+ffn", "all-linear")
_PREFIX = "base_model.model."  # what PEFT puts before a module's name in an adapter's file
# What an adapter's file may say of plain LoRA, and notes of PEFT's; of the rest some name code to import or to fetch.
_PLAIN = {
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "exclude_modules", "fan_in_fan_out", "inference_mode",
    "init_lora_weights", "layers_pattern", "layers_to_transform", "lora_alpha", "lora_dropout", "megatron_core",
    "peft_type", "peft_version", "r", "rank_pattern", "revision", "target_modules", "task_type", "use_rslora",
}  # fmt: skip
_FILES = ("adapter_config.json", "adapter_model.safetensors")


@dataclass(frozen=True, slots=True)
class Lora(Adapter):
    """w x + (alpha / rank) B A x: A and B are tuned, everything else is frozen, the head included."""

    kind: ClassVar[str] = "lora"
    merges: ClassVar[bool] = True
    servable: ClassVar[bool] = True
    divides: ClassVar[bool] = True

    rank: int = option(8, "rows of A and columns of B")
    alpha: float = option(16.0, "scale: B A is multiplied by alpha / rank")
    targets: str = option("attention+ffn", "attention, attention+ffn, all-linear, or names of linears: query,value")
    dropout: float = option(0.0, "dropout before A when trained by back-propagation; forward passes have none")
    start: str | None = option(None, "an existing PEFT adapter to begin with; its rank, alpha and targets count")

    def __post_init__(self) -> None:
        if self.start is not None and not self.start.strip():
            raise InputError("adapter.start is empty; expected the folder of a PEFT adapter")
        whole("adapter.rank", self.rank)
        positive("adapter.alpha", self.alpha)
        if not 0 <= self.dropout < 1:
            raise InputError(f"adapter.dropout is {self.dropout!r}; expected a share from 0 to below 1")

    def attach(self, model: Any, _fresh: Collection[str], seed: int) -> dict[str, Tensor]:
        """Put A and B beside each target; A by the run's seed, B zero, or both as an existing adapter has them."""
        peft = _peft()
        config = self._started(peft, model) if self.start else self._config(peft, model)
        for tensor in model.parameters():
            tensor.requires_grad_(requires_grad=False)
        try:
            peft.inject_adapter_in_model(config, model)
        except Exception as error:  # noqa: BLE001 (an adapter's file can hold anything; PEFT raises many kinds)
            raise InputError(f"the adapter does not fit the model: {_line(error)}") from None
        tuned = {name: _in_memory(model, name) for name, _ in model.named_parameters() if ".lora_" in name}
        for tensor in tuned.values():  # beside a quantised linear PEFT makes them float32 whatever the model's type
            tensor.data = tensor.data.to(model.dtype)
        if self.start:
            _load(tuned, Path(self.start))
        else:
            _draw(tuned, seed)
        model.peft_config = {"default": config}
        return tuned

    def save(self, model: Any, folder: str) -> None:
        """`adapter_config.json` and `adapter_model.safetensors`, as `PeftModel.from_pretrained` reads them."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / _FILES[0]).write_text(_config_text(model), encoding="utf-8")
        tensors = {_saved_name(name): tensor.detach() for name, tensor in model.named_parameters() if ".lora_" in name}
        save_file(tensors, str(Path(folder) / _FILES[1]), metadata={"format": "pt"})

    def published(self, model: Any, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What an inference server takes: the adapter's configuration, and these tensors by the names of its file."""
        return json.loads(_config_text(model)), {_saved_name(name): tensor for name, tensor in tensors.items()}

    def with_paths(self, whole: Callable[[str], str]) -> Lora:
        """With a start that is found from any folder."""
        return self if self.start is None else replace(self, start=whole(self.start))

    def merge(self, model: Any) -> Any:
        """The model with A and B added into its linears, and no adapter left."""
        from peft.tuners.lora import LoraLayer

        for name, module in list(model.named_modules()):
            if isinstance(module, LoraLayer):
                module.merge()
                parent, _, child = name.rpartition(".")
                setattr(model.get_submodule(parent), child, module.get_base_layer())
        del model.peft_config
        return model

    def _config(self, peft: Any, model: Any) -> Any:
        names = self._targets(model)
        for name in names:
            width = _width(model.get_submodule(name))
            if self.rank > width:
                raise InputError(f"adapter.rank is {self.rank}; linear {name!r} is only {width} wide: use a lower rank")
        return peft.LoraConfig(
            r=self.rank, lora_alpha=self.alpha, lora_dropout=self.dropout, target_modules=names, bias="none",
            base_model_name_or_path=model.config.name_or_path, inference_mode=False,
        )  # fmt: skip

    def _targets(self, model: Any) -> list[str]:
        """The names of the linears that are meant."""
        inside = dict(model.base_model.named_modules(prefix=model.base_model_prefix))
        linears = [name for name, module in inside.items() if _is_linear(module)]
        attention = [name for name in linears if "attn" in name or "attention" in name]
        layers = [name for name in linears if any(part.isdecimal() for part in name.split("."))]
        groups = {"attention": attention, "attention+ffn": layers, "all-linear": linears}
        if self.targets in groups:
            if not groups[self.targets]:
                raise InputError(
                    f"the model has no linears for adapter.targets {self.targets!r}: name some, or tune others"
                )
            return groups[self.targets]
        found: list[str] = []
        for word in (part.strip() for part in self.targets.split(",")):
            matched = [name for name in linears if name == word or name.endswith(f".{word}")]
            if not matched:
                known = sorted({name.rpartition(".")[2] for name in linears})
                raise InputError(
                    f"adapter.targets {word!r} matches no linear of the model; it has {', '.join(known)} "
                    f"(or {', '.join(GROUPS)}){suggestion(word, [*known, *GROUPS])}"
                )
            found += matched
        return sorted(set(found))

    def _started(self, peft: Any, model: Any) -> Any:
        """The configuration of an existing adapter, for the linears that its weights are of."""
        folder = Path(self.start or "")
        missing = [name for name in _FILES if not (folder / name).is_file()]
        if missing:
            raise InputError(f"adapter folder {str(folder)!r} has no {missing[0]}; expected {' and '.join(_FILES)}")
        try:
            config = peft.PeftConfig.from_pretrained(str(folder))
        except Exception as error:  # noqa: BLE001 (whatever the library raises, the file cannot be used)
            raise InputError(f"adapter folder {str(folder)!r} cannot be read: {_line(error)}") from None
        if config.peft_type != "LORA":
            raise InputError(f"adapter folder {str(folder)!r} holds {config.peft_type}; expected a LORA adapter")
        for item in fields(config):
            if item.name not in _PLAIN and getattr(config, item.name) != _usual(item):
                raise InputError(f"adapter folder {str(folder)!r} uses {item.name}; expected plain LoRA: A and B only")
        linears = _stored_linears(folder)
        _check_ranks(config, [module for name, module in model.named_modules() if name in linears], folder)
        config.inference_mode, config.init_lora_weights = False, True  # the base stays as it is: A and B are loaded
        # By name: a file's patterns are anyone's, and one that backtracks would not come to an end.
        config.target_modules = linears
        config.exclude_modules = config.layers_to_transform = config.layers_pattern = None
        return config


def _in_memory(model: Any, name: str) -> Tensor:
    """A parameter of the model; beside a base without memory it gets some, as it is to be written."""
    parameter: Tensor = model.get_parameter(name)
    if not parameter.is_meta:
        return parameter
    parent, _, own = name.rpartition(".")
    found = nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype), requires_grad=False)
    model.get_submodule(parent).register_parameter(own, found)
    return found


def _peft() -> Any:
    try:
        import peft
    except ImportError:
        raise InputError("--adapter lora needs a library that is not here: pip install 'noback[lora]'") from None
    # PEFT imports bitsandbytes wherever it is; what that says of kernels that it has not is of no use to a LoRA run.
    logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(_is_of_use)
    return peft


def _is_of_use(record: logging.LogRecord) -> bool:
    return "kernels-community" not in record.getMessage()


def _config_text(model: Any) -> str:
    """The adapter's configuration for PEFT: the same bytes each time, and with what its Auto classes look for.

    They choose the model's class by the task type. PEFT has none for a masked LM; `AutoPeftModel` then takes the class
    that is named here.
    """
    stored = model.peft_config["default"].to_dict()
    if stored["task_type"] is None and model.can_generate():
        stored["task_type"] = "CAUSAL_LM"
    elif stored["task_type"] is None and stored["auto_mapping"] is None:
        kind = type(model)
        stored["auto_mapping"] = {"base_model_class": kind.__name__, "parent_library": kind.__module__}
    plain = {key: sorted(value) if isinstance(value, set) else value for key, value in stored.items()}
    return json_text(plain, indent=2, sort_keys=True)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _usual(item: Field[Any]) -> Any:
    """What an option is where nothing is said."""
    return item.default if item.default_factory is MISSING else item.default_factory()


def _check_ranks(config: Any, beside: Sequence[nn.Module], folder: Path) -> None:
    """Refuse ranks and patterns of them that cost more than any LoRA: A and B are made before they are loaded."""
    widest = max((max(_sides(module)) for module in beside if _is_linear(module)), default=0)
    for pattern in (config.rank_pattern, config.alpha_pattern):
        if not isinstance(pattern, dict):
            raise InputError(f"adapter folder {str(folder)!r} has a pattern of ranks or alphas that is no table")
    for rank in (config.r, *config.rank_pattern.values()) if widest else ():  # none: of another model, as PEFT will say
        if not isinstance(rank, int) or not 0 < rank <= widest:
            raise InputError(
                f"adapter folder {str(folder)!r} has rank {str(rank)[:20]}; "
                f"expected a whole number up to {widest}, as its widest linear has"
            )
    for name in (*config.rank_pattern, *config.alpha_pattern):
        if set(name) & set("*+?{"):
            raise InputError(
                f"adapter folder {str(folder)!r} gives a rank or an alpha to {name[:60]!r}; expected names of linears"
            )


def _stored_linears(folder: Path) -> list[str]:
    """The linears whose matrices an adapter's file holds."""
    try:
        with safe_open(folder / _FILES[1], framework="pt") as file:
            names = list(file.keys())
    except (OSError, SafetensorError) as error:
        raise InputError(f"adapter file {str(folder / _FILES[1])!r} is damaged: {error}") from None
    return sorted({name.removeprefix(_PREFIX).partition(".lora_")[0] for name in names})


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _width(linear: Any) -> int:
    """The lesser of a linear's inputs and outputs."""
    return min(_sides(linear))


def _sides(linear: Any) -> tuple[int, ...]:
    """A linear's inputs and outputs; a quantised weight is packed, so its own shape does not say."""
    return (linear.in_features, linear.out_features) if isinstance(linear, nn.Linear) else tuple(linear.weight.shape)


def _draw(tuned: dict[str, Tensor], seed: int) -> None:
    """A with PEFT's usual variance, 1 / (3 inputs), from noback's noise; B zero."""
    for name, tensor in tuned.items():
        scale = 1 / math.sqrt(3 * tensor.shape[1]) if ".lora_A." in name else 0.0
        values = drawn(tuple(tensor.shape), name, f"lora {seed}", scale)
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(values))


def _load(tuned: dict[str, Tensor], folder: Path) -> None:
    try:
        stored = load_file(str(folder / _FILES[1]))
    except (OSError, SafetensorError) as error:
        raise InputError(f"adapter file {str(folder / _FILES[1])!r} is damaged: {error}") from None
    expected = {_saved_name(name): tensor for name, tensor in tuned.items()}
    for name, tensor in expected.items():
        if name not in stored or stored[name].shape != tensor.shape:
            what = f"has shape {tuple(stored[name].shape)}" if name in stored else "is missing"
            raise InputError(
                f"adapter {str(folder)!r} was made for another model: {name!r} {what}, expected {tuple(tensor.shape)}"
            )
        with torch.no_grad():
            tensor.copy_(stored[name])
    if set(stored) != set(expected):
        extra = sorted(set(stored) - set(expected))[0]
        raise InputError(f"adapter {str(folder)!r} was made for another model: it holds {extra!r}")


def _saved_name(name: str) -> str:
    return _PREFIX + name.replace(".default.", ".")
