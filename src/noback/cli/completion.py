"""noback completion: what a shell needs to complete noback's commands and flags."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

from noback.cli.completion_scripts import FILES, SCRIPTS, Command, Flag
from noback.cli.groups import actions_of
from noback.options import one_of

HELP = "print a script that completes noback's commands, flags and choices in bash, zsh or fish"
DESCRIPTION = """
Print a script that lets a shell complete noback's commands, flags, their choices, and folders of runs.

  noback completion bash > ~/.local/share/bash-completion/completions/noback
  noback completion zsh > ~/.zfunc/_noback                 with ~/.zfunc in fpath, before compinit
  noback completion fish > ~/.config/fish/completions/noback.fish

Write it to a file, as above: the script is made from every command's flags, which takes a few seconds. Make it anew
after an update.
"""
_SPLITS = ("train", "validation", "test")
_NOTHING = ("N", "X", "LIST", "KEY=VALUE", "TEXT")  # metavars of values that nothing can complete


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")


def run(arguments: argparse.Namespace) -> None:
    """Print the script."""
    one_of("shell", arguments.shell, SCRIPTS)
    print(SCRIPTS[arguments.shell](list(_commands())), end="")


def _commands() -> Iterator[Command]:
    """Every command with its flags and what may follow them."""
    from noback.cli.main import COMMANDS, _parser

    (parsers,) = [action.choices for action in _parser()._actions if isinstance(action.choices, dict)]
    known = _known()
    for name, parser in parsers.items():
        here = {**known, "at": ()} if name == "epsilon" else known  # its --at is a list of numbers
        positions = tuple(part for action in parser._get_positional_actions() for part in _values(action, here))
        flags = {
            flag: Flag(flag, _sentence(action), _values(action, here), action.nargs != 0)
            for action in [
                action for one in (parser, *actions_of(parser).values()) for action in one._get_optional_actions()
            ]
            for flag in [max(action.option_strings, key=len)]
        }
        yield Command(name, COMMANDS[name].HELP, tuple(flags.values()), positions)


def _known() -> dict[str, tuple[str, ...]]:
    """What a value may be, by what the flag or position sets."""
    from noback.cli.flags import config_choices
    from noback.embedded import MODELS
    from noback.tasks import task_names
    from noback.trackers import TRACKERS

    return {
        **config_choices(), "task": (*task_names(), FILES), "model": (*MODELS, FILES), "split": _SPLITS,
        "at": ("best", "final", "base"), "log_to": tuple(TRACKERS), "method": ("zero-shot", "probe", "adam"),
        "shell": tuple(SCRIPTS), "template": (), "words": (),
    }  # fmt: skip


def _values(action: argparse.Action, known: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """What may stand for a value: its choices, files, or nothing that is known."""
    if action.nargs == 0:
        return ()
    if action.choices is not None:
        return tuple(map(str, action.choices))
    return known.get(action.dest, () if action.metavar in _NOTHING else (FILES,))


def _sentence(action: argparse.Action) -> str:
    return " ".join((action.help or "").replace("%%", "%").split())
