"""Replay tensor by tensor: a run's weights written as a model's folder without ever being in memory together."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from noback.directions import Place, tensor_id
from noback.directions.backend import Part, backend_for
from noback.engines import Opened, chosen_device, identity_of
from noback.engines.shards import Plan, even_files, usual_files, write_index, write_tensors
from noback.engines.stored import INDEX, Stored, open_stored, stored_places
from noback.errors import InputError, NobackError
from noback.files import is_regular, read_json, whole_folder, write_whole
from noback.replaying import CHUNK, Recorded, check_base, recorded, recorded_move, step_at
from noback.tasks import spec_of
from noback.values import Move
from noback.watching import Silent, Watcher
from noback.weights import is_decayed


class Streamed(NamedTuple):
    """What was written: the step of its weights, and the digest of the tuned ones as the files hold them."""

    step: int
    weights: str | None  # none: a part of them


def export_streamed(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str],
    at: str = "best",
    *,
    model: str | None = None,
    device: str | None = None,
    part: tuple[int, int] | None = None,
    watcher: Watcher | None = None,
) -> Streamed:
    """Write a run's weights as a Hugging Face folder, from base and journal, some rows at a time.

    `part` (i, n): the i-th of n files alone, of a model that several machines replay; they share a folder, or their
    folders are put together. `model`, `device`: where the base is now, and where rows are moved.
    """
    watcher = watcher or Silent()
    run = recorded(path, model=model, device=device)
    run = run._replace(config=run.config.settled())
    warning = run.contents.warning()
    if warning is not None:
        watcher.note(warning)
    step = step_at(run.contents, at)
    opened, stored = _opened(run)
    tuned = run.config.adapter.attach(opened.model, opened.fresh, run.config.seed).keys()
    replay = _Replay(run, stored, frozenset(tuned), step, watcher)
    try:
        if part is not None:
            _write_part(Path(target), opened, replay, part)
            return Streamed(step, None)
        plan = usual_files(opened.model)
        with whole_folder(Path(target).resolve()) as unborn:
            _write_rest(unborn, opened, plan, {})
            replay.write(unborn, plan)
            return Streamed(step, _written(unborn, plan, stored).digest(tuned))
    except OSError as error:
        raise NobackError(f"cannot write to {str(target)!r}: {error.strerror or error}") from None


class _Replay:
    """The moves of a run up to a step, and the tensors that they move."""

    def __init__(self, run: Recorded, stored: Stored, tuned: frozenset[str], step: int, watcher: Watcher) -> None:
        self._stored, self._tuned, self._watcher = stored, tuned, watcher
        self._noise, self._device = run.config.known_noise, chosen_device(run.config.device)
        self.step, self.mark = step, run.contents.digests[step].hex()
        self._chunks = _chunks(run, step)

    def write(self, folder: Path, plan: Plan) -> None:
        """The files of a plan, or some of them."""
        total = self._stored.size([parameter for inside in plan.values() for _, parameter in inside])
        done = 0

        def moved(parameter: str) -> Iterator[Tensor]:
            nonlocal done
            for rows in self._moved(parameter):
                yield rows
                done += rows.nbytes
                self._watcher.progress("replaying the journal, MB", done // 10**6, total // 10**6)

        for file, inside in plan.items():
            write_tensors(folder / file, inside, self._stored, moved)

    def _moved(self, name: str) -> Iterator[Tensor]:
        """A tensor's rows after the moves; a part of a tensor moves as that part of the whole."""
        columns = torch.Size(self._stored.shapes[name][1:]).numel()
        for rows, first in self._stored.pieces(name):
            if name not in self._tuned:
                yield rows
                continue
            there = rows.to(self._device)
            part = Part(there, Place(tensor_id(name), columns, first_row=first), is_decayed(name))
            backend = backend_for({name: part}, self._noise)
            for moves in self._chunks:
                backend.advance(moves)
            if not all(math.isfinite(end) for end in there.aminmax()):
                raise NobackError(
                    f"tensor {name!r} of step {self.step} holds values that are no numbers (nan or infinite), so "
                    "nothing was written: the run has diverged there; write the weights of an earlier step (--at best)"
                )
            yield there.cpu()


def _chunks(run: Recorded, step: int) -> list[Sequence[Move]]:
    """Every move up to a step, as many together as one pass over the weights takes."""
    config, records = run.config, run.contents.steps
    rule, seed, noise = config.rule, config.seed, config.known_noise
    moves = [recorded_move(rule, seed, config.steps, records, each, noise=noise) for each in range(step)]
    return [moves[begin : begin + CHUNK] for begin in range(0, step, CHUNK)]


def _opened(run: Recorded) -> tuple[Opened, Stored]:
    """The base in its files, checked against the journal's header."""
    config, adapter = run.config, run.config.adapter
    if config.rule.keeps_moments:
        raise InputError(f"a run with rule {config.rule.kind!r} cannot be streamed: leave out --stream")
    if not adapter.tunes_base or not adapter.in_pieces or adapter.head_seed is not None:
        raise InputError(
            f"a run with adapter {adapter.kind!r} cannot be streamed; expected one that tunes all of the model's "
            "own weights (adapter full): leave out --stream"
        )
    if "readout" in run.contents.header:
        raise InputError(
            f"{run.where} holds a readout, which is not written row by row: leave out --stream, or train anew without "
            "one (--readout words)"
        )
    spec = spec_of(run.contents.header["task"], run.where)
    opened, stored = open_stored(config.model, config.dtype, causal=spec.is_causal)
    identity = identity_of(opened, chat=spec.chat, written=spec.answer == "text")
    check_base(config.model, run.where, run.contents.header, stored.digest(stored.shapes), identity)
    return opened, stored


def _write_rest(folder: Path, opened: Opened, plan: Plan, marks: Mapping[str, Any]) -> None:
    """All but the tensors: configuration, tokenizer, and the index where there are several files."""
    opened.model.save_pretrained(folder, state_dict={})
    opened.tokenizer.save_pretrained(folder)
    if len(plan) > 1 or marks:
        write_index(folder, plan, opened.model, marks)


def _write_part(folder: Path, opened: Opened, replay: _Replay, part: tuple[int, int]) -> None:
    """One file of several, into a folder that may hold the others."""
    number, count = part
    plan = even_files(opened.model, count)
    marks = {"noback_parts": count, "noback_step": replay.step, "noback_journal": replay.mark}
    file = list(plan)[number - 1]
    if folder.exists() and any(folder.iterdir()):
        index = read_json(folder / INDEX) if is_regular(folder / INDEX) else None
        found = index.get("metadata") if isinstance(index, dict) else None
        if not isinstance(found, dict) or not marks.items() <= found.items() or (folder / file).exists():
            raise InputError(
                f"{str(folder)!r} holds something else than the other parts of this export; choose another folder"
            )
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as aside:  # the library clears a folder of other parts as it saves
        _write_rest(Path(aside), opened, plan, marks)
        for path in Path(aside).iterdir():
            write_whole(folder / path.name, path.read_bytes())
    replay.write(folder, {file: plan[file]})


def _written(folder: Path, plan: Plan, stored: Stored) -> Stored:
    """The tensors that were written, by the names of their parameters."""
    names = {name: parameter for inside in plan.values() for name, parameter in inside}
    places = {names[name]: place for name, place in stored_places(folder).items()}
    return Stored(stored.shapes, stored.dtype, places)
