"""What can be done with a run's folder: rebuild its weights at any step, evaluate, predict and export them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from noback.adapters import is_quantised
from noback.answers import scored
from noback.counts import one_answer_warning
from noback.engines import AnyEngine, note_rows, rows_written, save_rows
from noback.errors import InputError, NobackError, NoNumbers
from noback.evaluating import answers, score_of, write
from noback.files import whole_folder
from noback.journal import Contents, read_header
from noback.objectives import TEXTS, refuse_code
from noback.predictions import answered, asked_data
from noback.replaying import begin_with, go_to, recorded, step_at
from noback.run import Run
from noback.run_data import trained_on, use_own_data
from noback.tasks import read_split, spec_of, with_columns
from noback.values import Score
from noback.watching import Watcher

_SPLITS = ("train", "validation", "test")


def open_run(
    path: str | os.PathLike[str],
    *,
    model: str | None = None,
    device: str | None = None,
    engine: AnyEngine | str | None = None,
    url: str | None = None,
    watcher: Watcher | None = None,
) -> tuple[Run, Contents]:
    """A run's base model and journal, checked against each other; `model` says where the base is now.

    `device`, `engine`, `url`: where to, what scores and where that is, if not as in the run.
    """
    recorded_run = recorded(path, model=model, device=device, engine=engine, url=url)
    contents = recorded_run.contents
    spec = spec_of(contents.header["task"], recorded_run.where)
    run = Run(recorded_run.config, recorded_run.folder, watcher, spec)
    begin_with(run, contents)
    warning = contents.warning()
    if warning is not None:
        run.watcher.note(warning)
    return run, contents


def tuned_run(
    path: str | os.PathLike[str],
    at: str = "best",
    *,
    model: str | None = None,
    device: str | None = None,
    engine: AnyEngine | str | None = None,
    url: str | None = None,
    snapshots: bool = True,
    watcher: Watcher | None = None,
) -> tuple[Run, int]:
    """A run with its weights brought to a step, and that step; without `snapshots`, from base and journal alone."""
    run, contents = open_run(path, model=model, device=device, engine=engine, url=url, watcher=watcher)
    step = step_at(contents, at)
    go_to(run, step, contents, snapshots=snapshots)
    return run, step


def evaluate(
    run: Run | str | os.PathLike[str],
    data: str | None = None,
    split: str = "test",
    columns: str | None = None,
    *,
    data_changed_ok: bool = False,
    trust: bool = False,
) -> tuple[Score, list[str]]:
    """Answer a split of some data (none: the run's own) with the run's weights as they stand, and what is to say of it.

    `run` is an opened run, or a run's folder or journal: its best weights.
    The task is the one that the journal holds. `data_changed_ok`: whether the run's own data may have changed since.
    `trust`: whether a reward's function that the run names may be imported and called.
    """
    if split not in _SPLITS:
        raise InputError(f"unknown split {split!r}; expected train, validation or test")
    run = _opened(run)
    if run.config.objective.judges == TEXTS:
        refuse_code(run.config.objective, "the run", trust=trust or not run.is_recorded)
    header, asked = read_header(run.folder.journal) if run.is_recorded else {}, split
    if data is None and columns is None:
        notes = use_own_data(run, header, changed_ok=data_changed_ok)
    else:
        asked = "asked"
        spec = run.task.spec if columns is None else with_columns(run.task.spec, columns)
        examples, notes = read_split(spec, data or run.config.data, split, run.config.test_limit)
        run.task.add(asked, examples)
    if asked != "train":
        notes += trained_on(run, header, asked)
    found = score_of(run, answers(run, asked), with_objective=False)
    warning = one_answer_warning(found.confusion, run.task.texts, f"{split} set")
    return found, [*notes, *([warning] if warning else [])]


def predict(run: Run | str | os.PathLike[str], data: Any, *, columns: str | None = None) -> list[dict[str, float]]:
    """The labels of each text or row, or its own choices, with their probabilities, in the order of the data.

    `run` is an opened run, or a run's folder or journal: its best weights. `data` is a text or a list of them (a tuple
    where one has several sentences, its choices after them), a row or any iterable of rows (mappings of columns, a
    `datasets.Dataset`), a pandas data frame, or the `pathlib.Path` of a data file. Rows need no label. `columns` names
    the data's columns where the task's are others.
    """
    opened = _opened(run)
    if opened.task.spec.answer == "text":
        raise InputError(f"task {opened.task.spec.name!r} has answers that are written; use generate")
    found = answered(opened, asked_data(opened.task, data, columns))
    return [dict(zip(answer.options, answer.chances, strict=True)) for _, answer in found]


def generate(run: Run | str | os.PathLike[str], data: Any, *, columns: str | None = None) -> list[str]:
    """What the run's model writes to each text or row, for a task whose answers are written; `data` as in `predict`."""
    opened = _opened(run)
    if opened.task.spec.answer != "text":
        raise InputError(f"task {opened.task.spec.name!r} has answers to choose from; use predict")
    return [answer.text for _, answer in answered(opened, asked_data(opened.task, data, columns))]


def _opened(run: Run | str | os.PathLike[str]) -> Run:
    """A run, or the one that a folder or a journal holds, at its best weights."""
    return run if isinstance(run, Run) else tuned_run(run)[0]


def _check_weights(run: Run, step: int | None) -> None:
    """Refuse to write weights that are no numbers."""
    name = run.weights.first_unsound()
    if name is not None:
        of = "" if step is None else f" of step {step}"
        raise NobackError(
            f"tensor {name!r}{of} holds values that are no numbers (nan or infinite), so nothing was written: "
            "the run has diverged there; write the weights of an earlier step (--at best)"
        )


def _check_answers(run: Run, step: int | None) -> None:
    """Refuse to write weights that are numbers, and too large for the model to answer with any."""
    spec = run.task.spec
    text = ("a",) * len(spec.sentences) + ("a", "b") * (spec.answer == "choices")
    try:
        if spec.answer == "text":
            write(run, run.task.asked([text]))
        else:
            scored(run.engine, run.task.prompts([text]))
    except NoNumbers as error:
        of = "the weights" if step is None else f"the weights of step {step}"
        raise NobackError(
            f"{error.found} with {of}, so nothing was written: the run has diverged there; "
            "write the weights of an earlier step (--at best)"
        ) from None


def _save(run: Run, adapter: Any, folder: Path, *, merge: bool) -> None:
    """A model or an adapter with its readout: in the decoder's rows, or in a file beside an adapter."""
    if run.readout is None or run.task.word_ids is None:
        adapter.merge(run.model).save_pretrained(folder) if merge else adapter.save(run.model, str(folder))
        return
    rows, ids = run.readout.rows, run.task.word_ids
    facts = {"labels": list(run.spec.labels), "words": run.task.texts, "token_ids": ids}
    if not (merge or adapter.tunes_base):
        adapter.save(run.model, str(folder))
        save_rows(folder, facts, rows)
        run.watcher.note(
            "the readout is in a file beside the adapter, readout.safetensors, which PEFT and servers do not read: "
            "--merge writes a whole model that holds it"
        )
        return
    model = adapter.merge(run.model) if merge else run.model
    with rows_written(model, ids, rows) as untied:
        model.save_pretrained(folder)
    note_rows(folder, facts, untied=untied)


def check_target(target: Path) -> None:
    """Refuse to write into a folder that holds something."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{str(target)!r} exists and is not empty; choose another folder")


def export(
    run: Run | str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    merge: bool = False,
    step: int | None = None,
) -> None:
    """Write what was tuned and the tokenizer: a Hugging Face model, an adapter, or a model with the adapter merged.

    `run` is an opened run, or a run's folder or journal: its best weights.
    `step` is for people: that of the weights, where a sentence must name it.
    """
    check_target(Path(target))
    run = _opened(run)
    _check_weights(run, step)
    _check_answers(run, step)
    adapter: Any = run.config.adapter
    if merge and not adapter.merges:
        raise InputError(f"--merge is for LoRA; a run with adapter {adapter.kind!r} is exported as it is")
    if merge and not run.config.engine.needs_base:
        raise InputError("--merge needs the base's weights, which are on a server; name where they are: --engine local")
    if merge and is_quantised(run.model):
        raise InputError(
            f"--merge would round A and B into the quantised weights of model {run.config.model!r}; export the "
            "adapter alone and let PEFT merge it into the model as it was before"
        )
    try:
        with whole_folder(Path(target).resolve()) as unborn:
            _save(run, adapter, unborn, merge=merge)
            run.tokenizer.save_pretrained(unborn)
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        raise NobackError(f"cannot write to {str(target)!r}: {why}") from None
