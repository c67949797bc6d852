"""A run's adapter put onto an inference server under a name, so that the server's clients can use it at once."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from noback.answers import scored
from noback.engines.outline import is_same_model
from noback.engines.servers.checking import complaints, needs_of
from noback.engines.servers.kinds import servers_at
from noback.engines.servers.remote import asks_of, label_scores
from noback.engines.servers.server import Copy
from noback.errors import InputError, shown
from noback.examining import Found, find
from noback.examining.scores import centred
from noback.run import Run
from noback.tuned import tuned_run
from noback.watching import Watcher

_NAME = re.compile(r"(?!noback-)[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_TEXTS = ("a", "it was the best of times", "no one knows why")  # any will do: two models answer them differently
_ROUNDED = {"float32": 1e-3, "float16": 0.05}  # most by which scores may differ by rounding
_COARSE = 0.4  # in other types
_PART = 0.1  # of what the adapter changes, by which scores may differ


class Loaded(NamedTuple):
    """What was put where."""

    kind: str
    url: str
    name: str
    step: int
    weights: str
    folder: str | None  # that holds its files, where the server may read them again
    difference: float | None  # of the scores there from those here; None: the base model is not here
    path: str  # of a request that asks for it
    body: dict[str, Any]


def load(  # noqa: PLR0913 (options by name)
    path: str | os.PathLike[str],
    address: str,
    name: str,
    *,
    at: str = "best",
    model: str | None = None,
    device: str | None = None,
    told: Mapping[str, Any] | None = None,
    again: bool = False,
    watcher: Watcher | None = None,
) -> Loaded:
    """Put a run's adapter onto a server; `again`: in place of one that has the name.

    `told`: options of the server's engine; its `folder`, where vLLM reads adapters, is `served` beside the journal
    unless told otherwise.
    """
    _check_name(name)
    run, step = tuned_run(path, at, model=model, device=device, watcher=watcher)
    _check_adapter(run)
    given = {"folder": str(run.folder.journal.resolve().parent / "served"), **(told or {})}
    found = find(servers_at(address, None, given))
    try:
        folder = Path(given["folder"]) if found.server.reads_files else None
        if folder is not None and "folder" not in (told or {}):
            folder.mkdir(exist_ok=True)
        off = _put(found, run, name, again=again)
        if folder is not None:
            _forget_others(folder, name)
    finally:
        found.close()
    asked = found.server.request_for(name, _example(run))
    where = str(folder) if folder is not None else None
    return Loaded(found.server.kind, found.server.url, name, step, run.weights.digest(), where, off, *asked)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(
            f"name {shown(name)} cannot be an adapter's; expected up to 63 letters, digits, '.', '_' and '-', and not "
            "'noback-' at the beginning, as the adapters of a run's steps have"
        )


def _check_adapter(run: Run) -> None:
    if not run.config.adapter.servable:
        raise InputError(
            f"the run's adapter is {run.config.adapter.kind!r}; servers take LoRA adapters beside their model: "
            "serve the whole model that `noback export` writes"
        )
    if run.readout is not None:
        raise InputError(
            "the run has a readout, and a server's adapters have no place for its rows: serve the whole model that "
            "`noback export --merge` writes, or train anew without one (--readout words)"
        )
    unsound = run.weights.first_unsound()
    if unsound is not None:
        raise InputError(f"tensor {unsound!r} holds nan or infinity; load the weights of an earlier step: --at STEP")


def _put(found: Found, run: Run, name: str, *, again: bool) -> float | None:
    """Publish the adapter, and take it back where the server's scores are not the run's."""
    server, about, background = found
    adapter: Any = run.config.adapter

    def published(tensors: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        configuration, named = adapter.published(run.model, tensors)
        return configuration, named

    for complaint in complaints(server, about, needs_of(run.weights.tensors, published)).values():
        if complaint is not None:
            raise InputError(complaint)
    if is_same_model(run.config.model, about.model) is False:
        raise InputError(
            f"server {server.url} serves {about.model!r}, whose weights are others than those of model "
            f"{run.config.model!r}, on which the run was trained; start one that serves that"
        )
    if name in background.run(server.loaded()):
        if not again:
            raise InputError(
                f"server {server.url} has an adapter {name!r}; choose another name, or put this one in its place "
                "with --replace"
            )
        background.run(server.retire(name))
    background.run(server.publish(name, Copy(*published(run.weights.tensors))))
    try:
        return _difference(found, run, name)
    except BaseException:
        background.run(server.retire(name))
        raise


def _difference(found: Found, run: Run, name: str) -> float | None:
    """By how much the scores there differ from those here; another base model is refused."""
    server, about, background = found
    spec = run.task.spec
    choices = ("a", "b") if spec.answer == "choices" else ()
    batch = run.task.prompts([(text,) * len(spec.sentences) + choices for text in _TEXTS])
    asks = list(asks_of(batch, run.task.word_ids))
    tuned = background.run(server.score([ask._replace(adapter=name) for ask in asks]))
    base = background.run(server.score(asks))
    theirs, without = (centred(label_scores(replies, batch, 1)[0]) for replies in (tuned, base))
    if not run.config.engine.needs_base:
        return None
    ours = centred(scored(run.engine, batch)[0])
    off, moved = float((theirs - ours).abs().max()), float((theirs - without).abs().max())
    if off > max(_ROUNDED.get(about.dtype, _COARSE), _PART * moved):
        raise InputError(
            f"server {server.url} answers with the adapter otherwise than the run does here (scores differ by "
            f"{off:.2g}), so it was taken back; it serves {about.model}, and the run was trained on {run.config.model}"
        )
    return off


def _example(run: Run) -> str | list[int]:
    """A prompt of the task as a text, or as tokens where the tokenizer by itself gives a text others."""
    shown = tuple(f"<{column}>" for column in run.task.spec.sentences)
    choices = ("a", "b") if run.task.spec.answer == "choices" else ()
    text, (tokens,) = run.task.spec.rendered(shown), run.task.asked([(*shown, *choices)])
    return text if list(run.tokenizer(text)["input_ids"]) == list(tokens) else list(tokens)


def _forget_others(folder: Path, name: str) -> None:
    """Remove what earlier loads under the name left; the newest is in use."""
    made = re.compile(re.escape(name) + r"-[0-9a-f]{16}")
    mine = [path for path in folder.iterdir() if made.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]
    for path in sorted(mine, key=lambda path: path.stat().st_mtime_ns)[:-1]:
        shutil.rmtree(path, ignore_errors=True)
