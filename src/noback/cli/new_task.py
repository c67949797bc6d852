"""noback tasks new: a task file made by looking at the data."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from noback.cli.commands import aligned, listed, say
from noback.errors import InputError, printable

if TYPE_CHECKING:
    from noback.tasks.proposing import Proposal


def run_new(arguments: argparse.Namespace) -> None:
    """Look at the data, write the task file and say what was chosen."""
    from noback.engines import is_causal, open_tokenizer
    from noback.tasks.data import rows_to_look_at
    from noback.tasks.own import name_of_data
    from noback.tasks.proposing import one_token, proposal

    if arguments.data is None:
        raise InputError("tasks new needs data to look at: --data FILE or FOLDER")
    name = name_of_data(arguments.data)
    target = Path(arguments.out or f"{name}.toml")
    if target.suffix != ".toml":
        raise InputError(f"--out is {str(target)!r}; expected a name that ends in .toml")
    if target.exists() or target.is_symlink():
        raise InputError(f"{str(target)!r} exists and is not overwritten; choose another with --out")
    rows = rows_to_look_at(arguments.data)
    causal = is_causal(arguments.model)
    fits = one_token(open_tokenizer(arguments.model), causal=causal)
    found = proposal(rows, listed("--columns", arguments.columns), fits)
    command = _command(arguments, target)
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(_toml(found, name, causal, command))
    except OSError as error:
        raise InputError(f"{str(target)!r} cannot be written: {error.strerror}") from None
    values = {
        "file": str(target), "rows": len(rows), "texts": list(found.texts), "label": found.label,
        "left_out": list(found.others), "counts": dict(found.counts), "words": dict(found.words),
        "to_fill_in": [label for label, word in found.words.items() if not word], "command": command,
    }  # fmt: skip
    say(arguments, values, _text(found, len(rows), arguments, values))


def _command(arguments: argparse.Namespace, target: Path) -> str:
    model = [] if arguments.model == "mini" else ["--model", arguments.model]
    return shlex.join(["noback", "train", "--task", str(target), "--data", arguments.data, *model])


def _toml(found: Proposal, name: str, causal: bool, command: str) -> str:
    """The task file; a comment says how each word was found."""
    text = found.template(causal=causal)
    template = {"prompt": text, "max_length": 2048} if causal else {"template": text}
    lines = [
        "# Made by `noback tasks new`. A word stands for each label; it must be one token of the model's. Train with:",
        f"# {printable(' '.join(command.split()))}",
        tomli_w.dumps({"name": name, **template, "label": found.label}),
        "[words]",
    ]
    for label, word in found.words.items():
        reason = found.reasons[label] if word else "write a word here"
        lines.append(f"{tomli_w.dumps({label: word}).strip()}  # {found.counts[label]} rows; {reason}")
    return "\n".join(lines) + "\n"


def _text(found: Proposal, rows: int, arguments: argparse.Namespace, values: dict[str, Any]) -> str:
    """What was chosen, for people."""
    others = f"; not used: {', '.join(found.others)}" if found.others else ""
    table = aligned(
        ("label", "rows", "word", "which is"),
        [(label, f"{found.counts[label]:,}", word or "-", found.reasons[label]) for label, word in found.words.items()],
    )
    missing, words = values["to_fill_in"], found.words.values()
    fill = [
        f"no word was found for {', '.join(missing)}: write one for each in {values['file']}; until then it is refused"
    ]
    return "\n".join(
        [
            f"{arguments.data}: {rows:,} rows; text in {', '.join(found.texts)}, label in {found.label}{others}",
            *(f"  {line}" for line in table),
            f"wrote {values['file']}" + (f"; each word is one token for model {arguments.model}" if any(words) else ""),
            *(fill if missing else []),
            f"{'then ' if missing else ''}train: {values['command']}",
        ]
    )
