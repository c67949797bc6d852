"""The report of one run, and of several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from noback.health import slope_figures
from noback.json_text import number_in
from noback.reporting.accuracies import (
    BEFORE,
    BEST,
    accuracies,
    chart_of,
    chart_together,
    stats_of,
    table_of,
    with_interval,
)
from noback.reporting.answers import (
    confusion_in,
    confusion_table,
    majorities,
    majority_table,
    majority_warnings,
    mistakes_table,
)
from noback.reporting.blocks import Block, Cell, Charts, Judgement, Note, Page, Section, Stats, Table
from noback.reporting.course import course_table
from noback.reporting.curves import curves
from noback.reporting.formats import duration, figure, figure_in, percent, plain
from noback.reporting.health_tables import health_tables
from noback.reporting.reading import EMPTY, ReadRun
from noback.reporting.rewards import reward_section, rewarded
from noback.reporting.setup import cost_table, lead, setup_section, state_sentence

Flags = Mapping[str, str]


def run_page(run: ReadRun, flags: Flags) -> Page:
    """Everything about one run."""
    sections = [
        _verdict(run), _accuracy(run), _curves(run), *_answers(run), _health(run), _cost(run),
        setup_section(run, flags),
    ]  # fmt: skip
    return Page(run.name, lead(run), state_sentence(run), tuple(one for one in sections if one.blocks))


def runs_page(runs: Sequence[ReadRun], flags: Flags) -> Page:
    """Several runs: one table, their curves laid over each other, and a short section each."""
    names = tuple(run.name for run in runs)
    charts = (*chart_together([(run.name, accuracies(run)) for run in runs]), *curves(dict(enumerate(runs))))
    sections = [
        Section("Side by side", (rows_of(runs),), in_summary=True),
        Section("Curves", (Charts(charts, names),) if charts else ()),
        *(_short(run, flags) for run in runs),
    ]
    tasks = sorted({f"task {run.option('task')}" for run in runs})
    state = "; ".join(f"{run.name}: {run.state}" for run in runs)
    return Page(f"{len(runs)} runs", " · ".join(tasks), state, tuple(one for one in sections if one.blocks))


def rows_of(runs: Sequence[ReadRun]) -> Table:
    """One row a run."""
    head = (
        "run", "objective", "adapter", "estimator", "rule", "eps", "lr", "zero slopes", "mean size of all slopes",
        "before (95% interval)", "after, best (95% interval)", "time", "verdict",
    )  # fmt: skip
    return Table(head, tuple(_row(run) for run in runs), first_is_head=True)


def _row(run: ReadRun) -> tuple[Cell, ...]:
    slopes = slope_figures(run.slopes) if run.slopes else {}
    return (
        Cell(run.name),
        *(Cell(str(run.option(f"{name}.kind") or "")) for name in ("objective", "adapter", "estimator", "rule")),
        figure(last_eps(run), plain), figure(run.option("rule.lr"), plain),
        figure_in(slopes, "zero_slope_share", percent, f"{run.name}-zero-slopes"),
        figure_in(slopes, "mean_abs_slope", name=f"{run.name}-mean-slope"),
        *_before_and_after(run),
        figure_in(run.last("result"), "seconds", duration, f"{run.name}-seconds"), Cell(run.judged().word),
    )  # fmt: skip


def _before_and_after(run: ReadRun) -> tuple[Cell, Cell]:
    if run.has_reward:
        before, best, _ = rewarded(run)
        return before.cell(f"{run.name}-"), best.cell(f"{run.name}-")
    found = {one.name: one for one in accuracies(run)}
    return with_interval(found.get(BEFORE), f"{run.name}-before"), with_interval(found.get(BEST), f"{run.name}-after")


def last_eps(run: ReadRun) -> float | None:
    """The eps of the newest step."""
    changes = run.contents.eps_changes if run.contents else []
    return changes[-1].eps if changes else number_in(run.config.get("estimator", {}), "eps")


def _verdict(run: ReadRun) -> Section:
    blocks: list[Block] = []
    if run.state == EMPTY:
        blocks.append(Note("This run is empty: it has a configuration, but no step was taken."))
    elif not run.metrics:
        blocks.append(Note("This run has no metrics (metrics.jsonl): what follows is from its journal alone."))
    if run.going:
        blocks.append(Note("This run is still going: the page shows it as it was when the report was made."))
    if run.contents and run.contents.torn_bytes:
        torn = f"The last {run.contents.torn_bytes} bytes of the journal are a torn record"
        blocks.append(Note(f"{torn}: they are left out here, and `noback resume` drops them.", warns=True))
    return Section("Verdict", (*blocks, _judgement(run)), in_summary=True)


def _judgement(run: ReadRun) -> Judgement:
    judged = run.judged()
    return Judgement(judged.word, judged.evidence, run.measured())


def _accuracy(run: ReadRun) -> Section:
    if run.has_reward:
        return reward_section(run)
    found = accuracies(run)
    if not found:
        return Section("Test accuracy", ())
    blocks = (Stats(stats_of(found)), Charts((chart_of(found),)), table_of(found, _metric(run)))
    return Section("Test accuracy", blocks, in_summary=True)


def _metric(run: ReadRun) -> str:
    """By what the run's scores are: the metric that was asked for, or the task's own."""
    return str(run.option("metric") or run.header.get("task", {}).get("metric", ""))


def _curves(run: ReadRun) -> Section:
    charts, table = curves({0: run}), course_table(run)
    return Section("Curves", (*((Charts(charts),) if charts else ()), *((table,) if table else ())), in_summary=True)


def _answers(run: ReadRun) -> list[Section]:
    line = run.last("test", at="best") or run.last("test", at="final")
    confusion, mistakes = confusion_in(line), mistakes_table(run)
    warnings = majority_warnings(majorities(run))
    table = (confusion_table(confusion, run.labels),) if confusion else ()
    return [
        Section("Answers to the test set, best weights", (*warnings, *table)),
        Section("Worst mistakes", (mistakes,) if mistakes else ()),
    ]


def _health(run: ReadRun) -> Section:
    found = majorities(run)
    return Section("Health", (*health_tables(run), *((majority_table(found),) if found else ())))


def _cost(run: ReadRun) -> Section:
    table = cost_table(run)
    return Section("Memory and time", (table,) if table else (), in_summary=True)


def _short(run: ReadRun, flags: Flags) -> Section:
    """A run among others: its verdict, its warnings and its command."""
    setup = setup_section(run, flags)
    said = [block for block in _verdict(run).blocks if not isinstance(block, Judgement)]
    found = accuracies(run)
    table = (table_of(found, _metric(run)),) if found else ()
    blocks = (
        Note(state_sentence(run)), *said, _judgement(run), *majority_warnings(majorities(run)),
        *table, *(block for block in setup.blocks if not isinstance(block, Table)),
    )  # fmt: skip
    return Section(run.name, blocks)
