"""The entry point: finds the command, and turns errors into one sentence and an exit code."""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from noback import __version__
from noback.cli import (
    baseline,
    bench,
    compare,
    completion,
    engine,
    epsilon,
    evaluate,
    export,
    journal,
    predict,
    replay,
    report,
    reproduce,
    resume,
    runs,
    sweep,
    tasks,
    train,
)
from noback.cli.groups import sort_flags
from noback.cli.help_text import HelpText, usage_of
from noback.cli.other_names import refusal
from noback.errors import InputError, NobackError, printable, shown
from noback.inputs import check_name
from noback.options import suggestion

COMMANDS = {
    "train": train,
    "resume": resume,
    "runs": runs,
    "sweep": sweep,
    "compare": compare,
    "epsilon": epsilon,
    "report": report,
    "baseline": baseline,
    "bench": bench,
    "reproduce": reproduce,
    "evaluate": evaluate,
    "predict": predict,
    "replay": replay,
    "export": export,
    "journal": journal,
    "tasks": tasks,
    "engine": engine,
    "completion": completion,
}


class _Parser(argparse.ArgumentParser):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # argparse takes -1e-5 for a flag; here it is a number, to be refused as one.
        self._negative_number_matcher = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"argument COMMAND: invalid choice: '(.*?)' \(choose", message)
        if unknown:
            near = suggestion(unknown[1], COMMANDS)
            message = f"{shown(unknown[1])} is not a command{near} (choose from {', '.join(map(repr, COMMANDS))})"
        raise InputError(f"{message} (`{self.prog} --help` shows how to use it)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it; a command's flag that is called otherwise here is answered with its name."""
        sentence = refusal(args or (), self._option_string_actions, self.prog) if self._is_command else None
        if sentence is not None:
            raise InputError(sentence)
        return super().parse_known_args(args, namespace)

    @property
    def _is_command(self) -> bool:
        return self._subparsers is None


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 2 for input that cannot be used, 130 for Ctrl-C, else 1."""
    try:
        words = sys.argv[1:] if argv is None else argv
        for word in words:
            check_name("an argument", word)
        parser = _parser(next((word for word in words if word in COMMANDS), ""))
        arguments = parser.parse_args(argv)
        arguments.command_line = list(words)  # other processes of a run are given the same
        if arguments.command is None:
            parser.print_help()
        else:
            arguments.command.run(arguments)
    except NobackError as error:
        _complain(str(error))
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone: nothing more to say
    except (OSError, UnicodeError, MemoryError) as error:
        _complain(str(error) or type(error).__name__)
        return 2 if getattr(error, "errno", None) == errno.ENAMETOOLONG else 1
    except KeyboardInterrupt:
        print("noback: stopped", file=sys.stderr)
        return 130
    return 0


def _complain(sentence: str) -> None:
    """One line on stderr."""
    print(f"noback: {printable(' '.join(sentence.split()))}", file=sys.stderr)


def _parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """Every command by name, the flags of the chosen one only (none: of all): most need torch to know their flags."""
    parser = _Parser(
        prog="noback",
        description="Fine-tune language models with forward passes only. `noback train` alone runs a whole example.",
    )
    parser.add_argument("--version", action="version", version=f"noback {__version__}")
    parser.set_defaults(command=None)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = subparsers.add_parser(
            name,
            help=command.HELP,
            description=command.DESCRIPTION,
            formatter_class=HelpText,
        )
        if chosen in (None, name):
            command.add(sub)
            sort_flags(sub)
            sub.usage = usage_of(sub)
        sub.set_defaults(command=command)
    return parser
