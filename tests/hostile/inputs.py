"""Random bad inputs, from a seed: data files, task files, configurations and command lines.

Each is accepted, or refused with a NobackError; at the command line, with one line on stderr and exit code 2.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import random
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from noback.cli.flags import config_flags
from noback.cli.main import main
from noback.config import config_of, read_config
from noback.errors import NobackError
from noback.tasks.data import read_data
from noback.tasks.spec import TaskSpec, load_spec, spec_of, task_names

ODD_TEXTS = [
    "", " ", "a", "clever", "dull", "0", "1", "true", "-1", "1.0", "1e3", "1e999", "nan", "inf", "\u00b2", "\u0663",
    "0x1F", "1_0", "9" * 30, "9" * 5000, "a\0b", "\ud800", "caf\udce9", "\x1b[31mred", "\u202eright to left", "a\tb",
    "a\nb", "a\r", '"', "'", '"""', ",", "{", "}", "{text}", "{{", "[", "]", "[[[", "#", "=", "\\", "..", "/",
    "../..", "/dev/null", "/dev/zero", "a" * 300, "a" * 5000, "é", "\U0001d518", "\ufeff", "None", "mini", "reviews",
    "best", "cpu", "cuda:99", "cuda:\u0663", "lora", "module:function", "reward:a:b", ":", "a:", ":a", "mine.toml",
    "train", "[1]", "{a = 1}", "[" * 3000, "last:9", "*", "*cls**sent_0*_It_was*mask*.*sep+*",
    f"*sent_{'9' * 5000}**mask*", "*sent_99**mask*", "{question:@x}", "text,label",
]  # fmt: skip
ODD_NUMBERS = [
    0, 1, -1, 2, 7, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64, 10**400, 16**5000, 0.0, 0.5, 1e-300, 1e300, -0.5,
    float("inf"), float("nan"), True, False,
]  # fmt: skip
OPTIONS = [
    *config_flags().values(), "estimator.kind", "rule.kind", "noise.kind", "engine.kind", "adapt_ties",
    "adapt_ties.window", "adapt_ties.factor", "adapt_ties.largest", "adapt_ties.target", "adapter.kind",
    "adapter.rank", "adapter.alpha", "adapter.tune", "adapter.dropout", "adapter.tokens", "adapter.start",
    "objective.kind", "objective.function", "products", "share", "estimator.adapt_ties", "stepz", "",
]  # fmt: skip
TASK_ENTRIES = [*(item.name for item in fields(TaskSpec)), "nmae"]
MASKED = {
    "name": "own", "template": "*cls**sent_0*_It_was*mask*.*sep+*", "words": {"0": "terrible", "1": "great"},
    "sentences": ["sentence"],
}  # fmt: skip
CHOOSING = {"name": "pick", "prompt": "{question}", "choices": ["options"]}
WRITTEN = {"name": "say", "prompt": "{question}", "max_new_tokens": 5, "metric": "token_f1"}
ROWS = {  # sound ones
    "own": {"sentence": "clever", "label": 1}, "pick": {"question": "which?", "options": ["a", "b"], "label": "b"},
    "say": {"question": "what?", "label": "this"},
}  # fmt: skip
SPECS = [spec_of(table, "own.toml") for table in (MASKED, CHOOSING, WRITTEN)]
PLAIN = [
    1, 2, 0.5, 1e-3, "cpu", "float32", "sgd", "momentum", "one_sided", "lora", {}, {"kind": "momentum", "window": 3},
]  # fmt: skip
FLAGS = [*config_flags(), "--config", "--set", "--set", "--health-every", "--log-to", "--no-such-flag", "--adapt-ties"]
COMMANDS: dict[str, list[str]] = {  # and what comes after, so that nothing that is accepted runs for long
    "train": ["--data", "no/such/data.csv"], "compare": ["--data", "no/such/data.csv"], "tasks": [],
    "baseline": ["zero-shot", "--data", "no/such/data.csv"], "epsilon": ["--data", "no/such/data.csv"],
    "evaluate": ["no/such/run"], "predict": ["no/such/run", "text"], "resume": ["no/such/run"], "journal": [],
    "replay": ["no/such/run", "no/such/target"], "export": ["no/such/run", "no/such/target"], "report": [],
    "reproduce": ["--estimate"], "bench": ["--shape", "no-such-shape"],
}  # fmt: skip


Attack = Callable[[random.Random, Path, list[Any]], None]  # the last: what was made, for the reproduction


def fuzz_inputs(seed: int, count: int) -> dict[str, int]:
    """Give `count` random inputs to each of the readers; how many of each were accepted and refused.

    An AssertionError tells what came out instead, and how to give it again.
    """
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            for name, attack in ATTACKS.items():
                draw = random.Random(f"{seed} {number} {name}")
                outcomes[f"{name} {_outcome(draw, attack, Path(folder), f'{name}, seed {seed}, number {number}')}"] += 1
    return dict(outcomes)


def _outcome(draw: random.Random, attack: Attack, folder: Path, which: str) -> str:
    given: list[Any] = []
    try:
        attack(draw, folder, given)
    except NobackError as error:
        return "refused" if str(error).strip() else "refused without a word"
    except Exception as error:
        trace = traceback.format_exc()[-3000:]
        raise AssertionError(f"{which}: {error!a:.500} for {_told(given)}\n{trace}") from error
    return "accepted"


def _told(given: list[Any]) -> str:
    try:
        return ascii(given)[:2000]
    except (RecursionError, ValueError):
        return "something too large to write; draw it again with the same seed and number"


# Values


def _value(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.randrange(10 if depth < 2 else 6)
    if kind < 4:
        return draw.choice(ODD_TEXTS)
    if kind < 6:
        return draw.choice(ODD_NUMBERS)
    if kind == 6:
        return [_value(draw, depth + 1) for _ in range(draw.randrange(4))]
    if kind == 7:
        return {draw.choice(ODD_TEXTS): _value(draw, depth + 1) for _ in range(draw.randrange(3))}
    return draw.choice([None, _deep(draw), draw.choice(ODD_TEXTS)])


def _deep(draw: random.Random) -> Any:
    """A list or table in itself, many times."""
    value: Any = 1
    listed = draw.random() < 0.5
    for _ in range(draw.choice([5, 3000])):
        value = [value] if listed else {"a": value}
    return value


def _json(value: Any) -> str:
    """A value as JSON, as deep as it is, a number as long as it is."""
    try:
        return json.dumps(value)
    except (RecursionError, ValueError):
        return "[" * 3000 + "]" * 3000 if isinstance(value, (list, dict)) else "9" * 5000


def _toml(value: Any) -> str:
    """A value as TOML might write it, right or wrong."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return hex(value) if value >= 2**70 else str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (list, dict)):
        return _toml_of_many(value)
    return json.dumps(str(value))


def _toml_of_many(value: Any) -> str:
    try:
        if isinstance(value, list):
            return f"[{', '.join(map(_toml, value))}]"
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml(item)}' for key, item in value.items())}}}"
    except RecursionError:
        return "[" * 3000 + "]" * 3000 if isinstance(value, list) else f"{{{'.'.join('a' * 3000)} = 1}}"


def _damaged(draw: random.Random, text: str) -> bytes:
    """A file's bytes, a third of them with some damage."""
    raw = text.encode("utf-8", "surrogatepass")
    if draw.random() < 0.33 and raw:
        at = draw.randrange(len(raw))
        raw = draw.choice(
            [raw[:at], raw[:at] + draw.randbytes(3) + raw[at:], raw[:at] + raw[at + 1 :], b"\xff\xfe" + raw]
        )
    return raw


def _path(draw: random.Random, folder: Path, name: str, raw: bytes) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(raw) if draw.random() < 0.5 and name.endswith(".gz") else raw)
    return path


def _json_lines(rows: list[dict[str, Any]]) -> str:
    objects = ([f"{_json(name)}: {_json(value)}" for name, value in row.items()] for row in rows)
    return "\n".join(f"{{{', '.join(pairs)}}}" for pairs in objects)


def _table(draw: random.Random, rows: list[dict[str, Any]], mark: str) -> str:
    """A header and rows, quoted now and then."""
    fields = [
        list(rows[0]),
        *([value if isinstance(value, str) else _json(value) for value in row.values()] for row in rows),
    ]
    quoted = draw.random() < 0.5
    return "\n".join(mark.join(f'"{field}"' if quoted else field for field in row) for row in fields)


# Attacks


def data(draw: random.Random, folder: Path, given: list[Any]) -> None:
    """A data file of some kind with odd columns, values and damage."""
    spec: TaskSpec = draw.choice(SPECS)
    ending = draw.choice([".csv", ".tsv", ".jsonl", ".csv.gz", ".jsonl.gz", ".txt"])
    rows = [dict(ROWS[spec.name]) for _ in range(4)]
    for row in rows * draw.choice([0, 1, 1]):
        if draw.random() < 0.3:
            row[draw.choice([*row, draw.choice(ODD_TEXTS)])] = _value(draw)
    text = _json_lines(rows) if "jsonl" in ending else _table(draw, rows, "\t" if "tsv" in ending else ",")
    path = _path(draw, folder, f"data{ending}", _damaged(draw, text))
    given.append((spec.name, ending, path.read_bytes()[:1500]))
    read_data(str(path) if draw.random() < 0.95 else draw.choice(ODD_TEXTS), spec)


def task(draw: random.Random, folder: Path, given: list[Any]) -> None:
    """A task's table, with entries changed, given as it is or as a file."""
    table: dict[str, Any] = dict(draw.choice([MASKED, CHOOSING, WRITTEN]))
    for _ in range(draw.randrange(4)):
        table[draw.choice(TASK_ENTRIES)] = _value(draw)
    given.append(table)
    if draw.random() < 0.5:
        spec_of(table, "own.toml").table()
        return
    text = "\n".join(f"{key} = {_toml(value)}" for key, value in table.items())
    path = _path(draw, folder, "own.toml", _damaged(draw, text))
    load_spec(draw.choice([str(path), str(path), draw.choice(ODD_TEXTS), *task_names()[:1]]))


def config(draw: random.Random, folder: Path, given: list[Any]) -> None:
    """A configuration's table, given as it is or as a file."""
    table: dict[str, Any] = {}
    for _ in range(draw.randrange(1, 4)):
        *parents, name = draw.choice(OPTIONS).split(".")
        inside = table
        for parent in parents:
            inside[parent] = inside = inside[parent] if isinstance(inside.get(parent), dict) else {}
        inside[name] = _value(draw) if draw.random() < 0.5 else draw.choice(PLAIN)
    given.append(table)
    if draw.random() < 0.5:
        config_of(table).digest()
        return
    text = "\n".join(f"{json.dumps(key)} = {_toml(value)}" for key, value in table.items())
    path = _path(draw, folder, "own.toml", _damaged(draw, text))
    config_of(read_config(path if draw.random() < 0.95 else Path(draw.choice(ODD_TEXTS))))


def command_line(draw: random.Random, folder: Path, given: list[Any]) -> None:
    """Words after a command; what is accepted meets data, a run or a shape that is not there."""
    command = draw.choice(list(COMMANDS))
    odd = [text for text in ODD_TEXTS if not text.startswith("/dev")]
    words = []
    for _ in range(draw.randrange(4)):
        flag, value = draw.choice(FLAGS), draw.choice([*odd, f"{draw.choice(OPTIONS)}={draw.choice(odd)}"])
        words += draw.choice([[flag, value], [f"{flag}={value}"], [value], [flag]])
    asked = [command, *words, *COMMANDS[command]]
    given.append(asked)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.chdir(folder):
        code = _exit_code(asked)
    assert code in (0, 2), f"exit code {code}: {err.getvalue()}"
    said = out.getvalue() + err.getvalue()
    assert not any(ord(letter) < 32 and letter not in "\n\t" for letter in said), f"control characters: {said!a:.500}"
    if code == 2:
        assert err.getvalue().count("\n") == 1, f"more than one line: {err.getvalue()}"
        assert err.getvalue().startswith("noback: ")
        raise NobackError(err.getvalue())


def _exit_code(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as end:  # --help and --version
        return int(end.code or 0)


ATTACKS: dict[str, Attack] = {
    "data": data, "task": task, "config": config, "command line": command_line,
}  # fmt: skip
