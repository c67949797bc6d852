"""noback bench: what a step costs on this machine; noback bench methods: what methods reach at equal budgets."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from noback.cli.commands import add_json, aligned, listed, say, stopping, watching, whole_number
from noback.errors import InputError
from noback.json_text import json_text
from noback.options import build

HELP = "measure what a training step costs on this machine, beside plain forwards, the reference MeZO and Adam"
DESCRIPTION = """
Measure, in one run, one training step of noback; the two plain forwards that it cannot go below, each in the fastest
way found (on a CUDA device also as a CUDA graph and compiled); the reference MeZO; and Adam by
back-propagation. Then the sweep: the in-place update of all weights against a copy of as many bytes.

  noback bench                                                     the embedded model: a few minutes
  noback bench --shape roberta-large --dtype bfloat16              random weights of that shape
  noback bench --shape opt-13b --dtype bfloat16 --batch 16 --tokens 400 --without adam
  noback bench --model roberta-base --adapter lora --out bench.json

  noback bench methods examples/methods-mini.toml --data DIR       methods at equal forwards and at equal time

What a step costs does not depend on the values of weights and tokens, so they are random. A contender that does not
fit into memory is a named gap in the table. Ctrl-C prints what is there so far.

`bench methods PLAN` runs methods x tasks x shots x seeds from a TOML file, each method with as many learning rates,
chosen by validation; then it answers the test set along each chosen run at the plan's budgets, from the journals.
The table has means, differences to the first method with 95 % intervals (paired bootstrap over seeds and examples),
and the budget at which each reaches the first method's last accuracy. Stopped or killed, the same command goes on.
DIR holds one folder a task. --estimate only says how long it would take. `noback report DIR` draws the result.
--jobs N goes through N parts of the plan at once, on one GPU or on a CPU's cores; equal time then means little.
"""
_KINDS = ("estimator", "rule", "noise")
_FLAGS = {"--noise-rank": "noise.rank", "--noise-period": "noise.period"}
_WHOLE = ("batch", "tokens", "repeats")
_NAMES = {"forwards": "two plain forwards", "noback": "noback", "reference": "reference MeZO", "adam": "Adam"}


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags, made from the case's fields."""
    parser.add_argument("methods", nargs="*", metavar="methods PLAN", help="compare methods by a plan, a TOML file")
    parser.add_argument("--data", metavar="DIR", help="methods: a folder with one folder of data a task")
    parser.add_argument("--estimate", action="store_true", help="methods: say how long it would take, and run nothing")
    parser.add_argument("--jobs", metavar="N", help="methods: so many runs at a time, each in a process of its own")
    parser.add_argument("--part", metavar="I/N", help="methods: run this part of a comparison only, and write no table")
    parser.add_argument("--so-far", action="store_true", help="methods: the table of what has ended; run nothing")
    from noback.bench import OPTIONAL, BenchCase
    from noback.cli.flags import add_flags
    from noback.keywords import method_flags

    for item in (item for item in fields(BenchCase) if item.name not in _KINDS):
        text, choices = item.metadata["help"], item.metadata["choices"]
        text += f": {', '.join(choices)}" if choices else ""
        if item.name == "without":
            parser.add_argument("--without", metavar="NAMES", help=f"{text}: {', '.join(OPTIONAL)}")
        else:
            shown = "" if item.default is None else f" (default {item.default})"
            metavar = "N" if item.name in _WHOLE else "NAME"
            parser.add_argument(f"--{item.name.replace('_', '-')}", metavar=metavar, help=text + shown)
    add_flags(parser.add_argument_group("noback's method"), BenchCase, method_flags(BenchCase, _KINDS, _FLAGS))
    parser.add_argument(
        "--out", metavar="FILE", help="also write every figure, with the machine's, to a JSON file; methods: the folder"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure and print the table."""
    if arguments.methods:
        from noback.cli.bench_methods import run as run_methods

        return run_methods(arguments)
    return _run_step(arguments)


def _run_step(arguments: argparse.Namespace) -> None:
    """What a step costs."""
    from noback.bench import BenchCase
    from noback.cli.flags import put_flags
    from noback.keywords import method_flags

    if arguments.model is not None and arguments.shape is not None:
        raise InputError("--shape and --model are both given; expected one of them")
    plain = [item.name for item in fields(BenchCase) if item.name not in _KINDS]
    given: dict[str, Any] = {name: getattr(arguments, name) for name in plain}
    given |= {name: whole_number(f"--{name}", given[name]) for name in _WHOLE}
    kinds: dict[str, Any] = {}
    put_flags(kinds, arguments, BenchCase, method_flags(BenchCase, _KINDS, _FLAGS))
    given["without"] = tuple(listed("--without", arguments.without))
    case = replace(build(BenchCase, kinds), **{name: value for name, value in given.items() if value is not None})
    out = _writable(arguments.out)
    from noback.bench.benching import bench

    with watching(arguments) as watcher, stopping() as stop:
        table = bench(case, watcher=watcher, stop=stop)
    if out is not None:
        out.write_text(json_text(table, indent=2) + "\n")
    say(arguments, table, text(table))
    if table["stopped"]:
        raise KeyboardInterrupt


def text(table: dict[str, Any]) -> str:
    """The table as people read it."""
    case, device = table["case"], table["machine"]["gpu"] or table["machine"]["cpu"]
    heads = ("a step of", "ms", "/ forwards", "/ reference", "peak MB", "/ inference", "tokens/s")
    tuned = f", {case['tuned']:,} tuned ({case['adapter']})" if case["tuned"] else ""
    seen = [row for row in table["contenders"] if row["milliseconds"] is not None]
    lines = [
        f"{case['model'] or case['shape']}: {case['parameters']:,} weights in {case['dtype']}"
        f"{', TF32 products' if case['matmul_precision'] == 'tf32' and case['device'] == 'cuda' else ''}{tuned}; "
        f"{case['batch']} x {case['tokens']} tokens; median of {case['repeats']}; {device}",
        *aligned(heads, [_cells(row, case) for row in seen]),
    ]
    lines += [f"{_NAMES[row['contender']]}: {row['gap']}" for row in table["contenders"] if row["gap"]]
    lines += [f"two plain forwards, {row['way']}: {row['gap']}" for row in table["ways"] if row["gap"]]
    lines += [row["note"] for row in table["contenders"] if row["note"]]
    return "\n".join([*lines, _sweep(table["sweep"])])


def _cells(row: dict[str, Any], case: dict[str, Any]) -> tuple[str, ...]:
    way = row["way"] or (_method(case) if row["contender"] == "noback" else "")
    name = _NAMES[row["contender"]] + (f" ({way})" if way else "")
    peak = None if row["peak_bytes"] is None else row["peak_bytes"] / 1e6
    return (
        name, f"{row['milliseconds']:,.2f}", _or_dash(row["over_forwards"], ".2f"),
        _or_dash(row["over_reference"], ".2f"), _or_dash(peak, ",.0f"), _or_dash(row["over_inference"], ".3f"),
        f"{row['tokens_a_second']:,.0f}",
    )  # fmt: skip


def _method(case: dict[str, Any]) -> str:
    """What noback does in a step, where it is not two forwards and a plain update: the ratios are over two forwards."""
    kinds = [case[name]["kind"] for name in ("estimator", "rule")]
    other = [kind for kind in kinds if kind not in ("two_sided", "sgd")]
    return ", ".join([*other, f"{case['forwards']} forwards"]) if other or case["forwards"] != 2 else ""


def _sweep(swept: dict[str, Any]) -> str:
    if swept["gap"]:
        return f"the sweep of all tuned weights: {swept['gap']}"
    return (
        f"the sweep of all tuned weights: {swept['noback_gigabytes_a_second']:,.1f} GB/s, "
        f"{swept['share_of_copy']:.0%} of a copy's {swept['copy_gigabytes_a_second']:,.1f}"
    )


def _writable(name: str | None) -> Path | None:
    """The file to write, found writable before an hour is spent."""
    if name is None:
        return None
    path = Path(name)
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"--out is {name!r}; expected a file in a folder that exists")
    return path


def _or_dash(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)
