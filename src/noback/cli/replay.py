"""noback replay: the tuned weights from the base and the journal alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from noback.cli.commands import add_json, add_run, places, say
from noback.errors import InputError, shown
from noback.inputs import whole_number_in

_MOST_PARTS = 99_999  # five digits in a file's name
HELP = "rebuild the tuned weights from the base model and the journal alone"
DESCRIPTION = """
Rebuild the tuned weights from the base model and the journal alone, bit for bit, and write them as an ordinary
Hugging Face folder. No snapshot and no data is read: the journal file by itself is enough.

  noback replay runs/reviews-001 tuned-model
  noback replay runs/reviews-001/journal tuned-model --model path/to/base

For a model that is larger than the memory, --stream reads the base in pieces, moves them and writes them; several
machines can each write a part:

  noback replay runs/reviews-001 tuned-model --stream
  noback replay runs/reviews-001 tuned-model --part 1/4
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    add_run(parser)
    parser.add_argument("target", metavar="DIR", help="the new folder")
    add_streaming(parser)
    add_json(parser)


def add_streaming(parser: argparse.ArgumentParser) -> None:
    """--stream and --part: without the whole model in memory."""
    parser.add_argument(
        "--stream", action="store_true",
        help="tensor by tensor from the base's files, without the whole model in memory; adapter full, same bytes; the "
        "model is not asked whether it can still answer",
    )  # fmt: skip
    parser.add_argument(
        "--part", metavar="I/N",
        help="stream file I of N only: N machines write one model, into one folder or several to be put together",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Replay, write and say what came out."""
    write(arguments, snapshots=False)


def write(arguments: argparse.Namespace, *, snapshots: bool) -> None:
    """Bring the weights to the asked step and write them as a Hugging Face folder."""
    from noback.cli.display import Display
    from noback.tuned import check_target, export, tuned_run

    part, target = part_of(arguments.part), Path(arguments.target)
    if part is None:
        check_target(target)
    if part is not None or arguments.stream:
        _stream(arguments, part)
        return
    tuned, step = tuned_run(
        arguments.run,
        arguments.at,
        **places(arguments),
        snapshots=snapshots,
        watcher=Display(),
    )
    export(tuned, target, merge=getattr(arguments, "merge", False), step=step)
    digest = tuned.weights.digest()
    values = {"run": arguments.run, "folder": str(target), "step": step, "weights": digest}
    say(arguments, values, f"weights of step {step} ({digest[:12]}) in {target}")


def _stream(arguments: argparse.Namespace, part: tuple[int, int] | None) -> None:
    """Write the weights, or a part of them, without the whole model in memory."""
    from noback.cli.display import Display
    from noback.streaming import export_streamed

    if getattr(arguments, "merge", False):
        raise InputError("--merge is for LoRA and --stream for runs that tune the model's own weights; leave one out")
    written = export_streamed(
        arguments.run,
        arguments.target,
        arguments.at,
        model=arguments.model,
        device=arguments.device,
        part=part,
        watcher=Display(),
    )
    values = {
        "run": arguments.run,
        "folder": arguments.target,
        "step": written.step,
        "weights": written.weights,
        "part": arguments.part,
    }
    what = (
        f"weights of step {written.step} ({written.weights[:12]})"
        if written.weights
        else (f"part {arguments.part} of the weights of step {written.step}")
    )
    say(arguments, values, f"{what} in {arguments.target}")


def part_of(text: str | None) -> tuple[int, int] | None:
    """The two numbers of I/N; none where none were given."""
    if text is None:
        return None
    number, count = (whole_number_in(each) for each in text.partition("/")[::2])
    if not (number and count) or number > count or count > _MOST_PARTS:
        raise InputError(
            f"--part is {shown(text)}; expected I/N with I from 1 to N and N at most {_MOST_PARTS:,}, such as 1/4"
        )
    return number, count
