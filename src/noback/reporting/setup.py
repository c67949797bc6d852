"""What was run, what it took, and how to repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noback.json_text import number_in
from noback.reporting.blocks import Block, Cell, Command, Section, Table
from noback.reporting.command import command_to_repeat
from noback.reporting.formats import NOTHING, duration, figure, figure_in, memory, moment, plain, short
from noback.reporting.reading import EMPTY, FINISHED, GOING, ReadRun

_OPTIONS = (
    ("model", "model"), ("task", "task"), ("data", "data"), ("columns", "columns"),
    ("template", "template"), ("label words", "words"), ("shots per label", "shots"),
    ("objective", "objective"), ("adapter", "adapter"), ("steps", "steps"), ("patience", "patience"),
    ("batch", "batch"), ("balance", "balance"), ("estimator", "estimator"), ("rule", "rule"),
    ("noise", "noise"), ("readout", "readout"), ("engine", "engine"),
    ("type of the weights", "dtype"), ("seed", "seed"), ("seed of the data", "data_seed"),
)  # fmt: skip
_LEAD = (
    ("model", "model"), ("objective", "objective.kind"), ("adapter", "adapter.kind"),
    ("estimator", "estimator.kind"), ("rule", "rule.kind"),
)  # fmt: skip


def option_text(value: Any) -> str:
    """An option as a text: a table by its kind and what stands in it."""
    if isinstance(value, Mapping):
        rest = ", ".join(f"{key} {option_text(inner)}" for key, inner in value.items() if key != "kind")
        kind = str(value.get("kind", ""))
        return f"{kind} ({rest})" if kind and rest else kind or rest
    if isinstance(value, bool):
        return "true" if value else "false"
    return plain(value) if isinstance(value, float) else str(value)


def state_sentence(run: ReadRun) -> str:
    """How far the run has come."""
    planned = number_in(run.config, "steps")
    of = f" of {planned:,}" if planned is not None else ""
    done = f"{len(run.steps):,}"
    if run.has_diverged and not run.going:
        return f"stopped at step {done}{of}: its answers or losses are no numbers from there on; train anew"
    if run.state == EMPTY:
        return "empty: no step was taken"
    if run.state == GOING:
        return f"still going: step {done}{of}"
    if run.state == FINISHED:
        seconds = number_in(run.last("result"), "seconds")
        took = f" in {duration(seconds)}" if seconds is not None else ""
        if run.contents and run.contents.stopped_early:
            waited = f"{run.option('patience')} evaluations in a row brought no better weights"
            return f"finished{took}: stopped early at step {done}{of}: {waited}"
        return f"finished: {done}{of} steps{took}"
    return f"stopped at step {done}{of}; go on with: noback resume {run.path}"


def lead(run: ReadRun) -> str:
    """What was run, in one line."""
    named = [("task", run.task), *((name, run.option(path)) for name, path in _LEAD)]
    return " · ".join(f"{name} {value}" for name, value in named if value is not None)


def setup_section(run: ReadRun, flags: Mapping[str, str], level: int = 2) -> Section:
    """The options, the versions and the command."""
    values = [(title, run.task if path == "task" else run.option(path)) for title, path in _OPTIONS]
    options = [(title, option_text(value)) for title, value in values if value is not None]
    if run.option("data") is None:
        options.insert(2, ("data", "embedded in noback"))
    facts = options + _prompt(run) + _facts(run)
    rows = tuple((Cell(title), Cell(text)) for title, text in facts)
    blocks: tuple[Block, ...] = (Table((), rows, first_is_head=True), Command(command_to_repeat(run.config, flags)))
    return Section("What was run", blocks, in_summary=True, level=level)


def _prompt(run: ReadRun) -> list[tuple[str, str]]:
    """How the model is asked and what it may answer; a classification head is not asked by a prompt."""
    task = run.header.get("task", {})
    if not isinstance(task, Mapping) or run.option("adapter.kind") == "head":
        return []
    found = [(name, task.get(name)) for name in ("template", "prompt", "continuation")]
    words = task.get("words")
    said = ", ".join(f"{label}: {word}" for label, word in words.items()) if isinstance(words, Mapping) else ""
    return [
        *((name, _on_one_line(text)) for name, text in found if isinstance(text, str) and text),
        *([("label words", said)] if said else []),
    ]


def _on_one_line(text: str) -> str:
    return text.replace("\n", "\\n")


def _facts(run: ReadRun) -> list[tuple[str, str]]:
    start, header = run.last("start"), run.header
    tuned, began = number_in(start, "tuned"), number_in(start, "time")
    versions = header.get("versions") or {}
    found = [
        ("tuned weights", f"{tuned:,}" if tuned is not None else None),
        ("began", moment(began) if began is not None else None),
        ("learning rate", _screened(run.last("screening"))),
        ("examples in two sets", _overlap(start.get("overlap"))),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("digest of the base weights", header.get("base")), ("digest of the data", header.get("data")),
    ]  # fmt: skip
    return [(title, str(text)) for title, text in found if text]


def _screened(line: Mapping[str, Any]) -> str | None:
    """How the learning rate was found, where the run was left to find it."""
    columns = [line.get(key) for key in ("rates", "lengths", "losses")]
    lr, forwards = number_in(line, "lr"), number_in(line, "forwards")
    if lr is None or forwards is None or not all(isinstance(one, list) for one in columns):
        return None
    said = ["lost" if loss is None else f"{loss:.3f}" for loss in columns[2] or ()]
    trials = zip(columns[0] or (), columns[1] or (), said, strict=False)  # a file may be changed by hand
    tried = ", ".join(f"{rate:g}: {found} after {steps}" for rate, steps, found in trials)
    return f"{lr:g}, found by trials with {forwards:,} forwards; held-out loss by rate and steps: {tried}"


def _overlap(counts: Any) -> str:
    """What the sets of a run have in common; empty where they have nothing, or where that is not known."""
    if not isinstance(counts, Mapping):
        return ""
    shared, labels = counts.get("shared"), number_in(counts, "two_labels")
    said = [_shared(one) for one in shared if isinstance(one, Mapping)] if isinstance(shared, list) else []
    return "; ".join([*said, *([f"{labels:,} texts with more than one label"] if labels else [])])


def _shared(one: Mapping[str, Any]) -> str:
    exact, near, examples = (number_in(one, key) or 0 for key in ("exact", "near", "examples"))
    return f"{exact + near:,} of {examples:,} {one.get('of')} examples in {one.get('within')} ({exact:,} exactly)"


def cost_table(run: ReadRun) -> Table | None:
    """Memory and time; of a run that is not finished, what its last evaluation says."""
    result, steps = run.last("result"), len(run.steps)
    seconds = number_in(result, "seconds")
    if seconds is None:
        seconds = max((number_in(one, "seconds") or 0.0 for one in run.lines("validation")), default=None)
    if seconds is None:
        return None
    forwards = number_in(result, "forwards")
    rows = (
        (Cell("time"), figure(seconds, duration, "seconds")),
        (
            Cell("time a step, evaluations included"),
            figure(seconds / steps if steps else None, duration, "seconds-a-step"),
        ),
        (Cell("forwards of a batch"), figure(forwards, short, "forwards")),
        (Cell("peak memory"), figure_in(result, "peak_memory_bytes", memory, "peak-memory")),
        (Cell("journal"), figure_in(result, "journal_bytes", memory, "journal-bytes")),
    )
    return Table((), tuple(row for row in rows if row[1].text != NOTHING), first_is_head=True)
