"""The files of a model: which of them may be opened is decided before any library opens one.

A library trusts what a model's own files say: an index may name a pickle or a file of another folder, a configuration
may name code of the hub, and a pipe in place of a file is waited for without end.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from noback.errors import InputError

_CONFIG, _WEIGHTS, _INDEX, _ADAPTER = (
    "config.json", "model.safetensors", "model.safetensors.index.json", "adapter_config.json",
)  # fmt: skip
_TEMPLATES = "additional_chat_templates"
_LONGEST = 2**26  # bytes of a JSON file; an index of 100,000 tensors has a tenth of it
_DEEPEST = 16  # tables within tables of a configuration
_COUNTS = ("layers", "n_layer", "experts")
_USUAL_LAYERS = 1024  # so many may be there without the tensors that say so: some models use a layer many times


def checked_config(name: str, path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The model's configuration as its file has it, once nothing in its files leads anywhere but to safetensors.

    `path` is a folder, or a name of the hub that is opened with `options`.
    """
    folder = Path(path) if Path(path).is_dir() else None
    if folder is not None:
        check_plain_files(f"model {name!r}", [*folder.iterdir(), *folder.glob(f"{_TEMPLATES}/*")])
    found = {file: _found(name, file, folder, options) for file in (_CONFIG, _INDEX, _ADAPTER)}
    if found[_ADAPTER] is not None:
        raise InputError(
            f"model {name!r} holds an adapter ({_ADAPTER}); expected a model alone: begin with the adapter by "
            "--adapter lora --set adapter.start=FOLDER, or merge it into the model"
        )
    table = _config(name, found[_CONFIG], path, options)
    index = found[_INDEX]
    tensors = None if index is None else _indexed(name, index)
    _check_weights_name(name, table)
    _check_code(name, table)
    if folder is not None and (folder / _WEIGHTS).is_file():
        tensors = _stored(name, folder / _WEIGHTS)
    _check_layers(name, table, tensors)
    return table


def check_plain_files(whose: str, paths: Iterable[Path]) -> None:
    """Refuse pipes, sockets and devices, which would be waited for."""
    for path in paths:
        try:
            kind = path.stat().st_mode
        except OSError:  # a link to nowhere: whoever needs the file says so
            continue
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            raise InputError(f"{path.name!r} of {whose} is no plain file; put a plain file in its place")


def read_table(path: Path, what: str) -> dict[str, Any]:
    """The table of a JSON file."""
    try:
        if path.stat().st_size > _LONGEST:
            raise InputError(f"{what} has {path.stat().st_size:,} bytes; expected {_LONGEST:,} at most")
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{what} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} is not JSON that can be used: {error}") from None
    if not isinstance(table, dict):
        raise InputError(f"{what} is JSON of another kind; expected a table")
    return table


def _found(name: str, file: str, folder: Path | None, options: Mapping[str, Any]) -> Path | None:
    """A file of the model where it has one; one of the hub is brought here."""
    if folder is not None:
        return folder / file if (folder / file).exists() else None
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(huggingface_hub.hf_hub_download(name, file, **options))
    except EntryNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 (no right to it, no network any more, a full disk)
        raise InputError(f"{file} of model {name!r} cannot be had: {' '.join(str(error).split())[:200]}") from None


def _config(name: str, file: Path | None, path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """By the library's own rules where its first file can be read: that may name another one for this version."""
    import transformers

    what = f"{_CONFIG} of model {name!r}"
    if file is None:
        raise InputError(f"model {name!r} cannot be opened: it has no {_CONFIG}")
    read_table(file, what)
    try:
        table, _ = transformers.PretrainedConfig.get_config_dict(path, **options)
    except Exception as error:  # noqa: BLE001 (the library raises many kinds; each means that it cannot be read)
        raise InputError(f"{what} cannot be read: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(table, dict):
        raise InputError(f"{what} is JSON of another kind; expected a table")
    return table


def _indexed(name: str, index: Path) -> int:
    """How many tensors an index names, each in a safetensors file beside it."""
    files = read_table(index, f"{_INDEX} of model {name!r}").get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise InputError(f"{_INDEX} of model {name!r} has no table 'weight_map' of file names")
    for file in sorted(set(files.values())):
        _check_safetensors(f"{_INDEX} of model {name!r}", file)
    return len(files)


def _check_weights_name(name: str, table: Mapping[str, Any]) -> None:
    """Some configurations name the file of their weights."""
    named = table.get("transformers_weights")
    if named is not None:
        _check_safetensors(f"entry 'transformers_weights' in {_CONFIG} of model {name!r}", str(named))


def _check_safetensors(where: str, file: str) -> None:
    if Path(file).name != file or not file.endswith(".safetensors"):
        raise InputError(
            f"{where} names the file {file[:200]!r}; expected .safetensors files in the model's own folder: "
            "convert the model, others are not opened"
        )


def _check_code(name: str, table: Mapping[str, Any]) -> None:
    """An attention of the form owner/name is code that the library would fetch from the hub and run."""
    for key, value in _entries(table):
        if key.endswith("_implementation") and "/" in str(value):
            raise InputError(
                f"{key!r} in {_CONFIG} of model {name!r} is {str(value)[:100]!r}, code of the hub, which is not run; "
                "take the entry out"
            )


def _stored(name: str, file: Path) -> int:
    """How many tensors a weights file holds."""
    try:
        with safe_open(file, framework="pt") as tensors:
            return len(tensors.keys())
    except (OSError, SafetensorError) as error:
        raise InputError(f"model {name!r} cannot be opened: {_WEIGHTS} is damaged ({error})") from None


def _check_layers(name: str, table: Mapping[str, Any], tensors: int | None) -> None:
    """Refuse more layers than there are tensors: a module is made for each before a weight is read."""
    most = max(tensors or 0, _USUAL_LAYERS)
    for key, value in _entries(table):
        if key.endswith(_COUNTS) and isinstance(value, int) and value > most:
            raise InputError(
                f"{key!r} in {_CONFIG} of model {name!r} is {str(value)[:20]}; expected {most} at most, as many as the "
                "model has tensors: put the configuration back that belongs to its weights"
            )


def _entries(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The entries of a table and of all that is in it."""
    inside: list[Any] = [table]
    for _ in range(_DEEPEST):
        tables = [one for one in inside if isinstance(one, Mapping)]
        yield from ((str(key), value) for one in tables for key, value in one.items())
        lists = [one for one in inside if isinstance(one, list)]
        inside = [value for one in (*(each.values() for each in tables), *lists) for value in one]
    if inside:
        raise InputError(f"{_CONFIG} has tables in tables, more than {_DEEPEST} deep; expected a model's configuration")
