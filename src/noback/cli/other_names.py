"""Flags as other programs call them, and what each is called here."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import pairwise

from noback.errors import shown
from noback.flag_names import ELSEWHERE, EPOCHS
from noback.options import suggestion

_USUAL_BATCH = 64
# What has another way than a flag.
_OTHERWISE = {
    "--resume": "a stopped run goes on with `noback resume RUN`",
    "--resume-from-checkpoint": "a stopped run goes on with `noback resume RUN`",
    "--linear-probe": "it is a command: `noback baseline probe`",
    "--linear-probing": "it is a command: `noback baseline probe`",
    "--zero-shot": "it is a command: `noback baseline zero-shot`",
    "--save-steps": "it is not needed: the journal rebuilds the weights of every step",
    "--max-length": "it is `max_length` in the task's TOML file (`noback tasks TASK` shows it)",
    "--max-seq-length": "it is `max_length` in the task's TOML file (`noback tasks TASK` shows it)",
    "--max-new-tokens": "it is `max_new_tokens` in the task's TOML file (`noback tasks TASK` shows it)",
}


def refusal(words: Sequence[str], known: Collection[str], command: str) -> str | None:
    """What to say to the first flag among some words that a command does not know; None where it knows them all."""
    for word in words[: words.index("--")] if "--" in words else words:
        flag = word.partition("=")[0]
        is_flag = re.fullmatch(r"--[A-Za-z][\w-]*", flag) and " " not in word  # else a text, as argparse has it
        if is_flag and flag not in known and (_ours(flag, known) or not any(each.startswith(flag) for each in known)):
            return f"{_answer(flag, words, known, command)} (`{command} --help` shows its options)"
    return None


def _answer(flag: str, words: Sequence[str], known: Collection[str], command: str) -> str:
    usual = flag.lower().replace("_", "-")
    if usual in EPOCHS and "--steps" in known:
        return f"{flag} is not an option: noback counts steps, not epochs: {_steps_of_an_epoch(words)}"
    if usual in _OTHERWISE:
        return f"{flag} is not an option: {_OTHERWISE[usual]}"
    ours = _ours(flag, known)
    if ours is not None:
        return f"{flag} is not an option: here it is {ours}"
    return f"{shown(flag)} is not an option of `{command}`{suggestion(usual, known)}"


def _ours(flag: str, known: Collection[str]) -> str | None:
    """What a flag is called here, where the command has it."""
    usual = flag.lower().replace("_", "-")
    ours = usual if usual in known else ELSEWHERE.get(usual, "")
    return ours if ours.partition(" ")[0] in known else None


def _steps_of_an_epoch(words: Sequence[str]) -> str:
    """How many steps an epoch is, with the batch of the command line where it names one."""
    after = dict(pairwise(words)) | dict(word.split("=", 1) for word in words if "=" in word)
    text = after.get("--batch", "")
    batch = int(text) if re.fullmatch(r"[1-9][0-9]{0,8}", text) else _USUAL_BATCH
    return (
        f"an epoch is the number of training examples divided by --batch ({batch}), "
        f"so 1,000 examples are --steps {-(-1000 // batch)} an epoch"
    )
