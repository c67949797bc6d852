"""The groups in which a command's help shows its flags."""

from __future__ import annotations

import argparse

# Group -> what its flags set: a command's own value, or the first part of an option's place in the configuration.
_GROUPS = {
    "data": (
        "task", "template", "words", "data", "columns", "split", "shots", "demonstrations", "data_seed", "test_limit",
        "data_changed_ok", "input", "file",
    ),
    "model": ("model", "at", "adapter", "dtype", "quantise", "device", "engine", "url", "trust", "shape", "merge"),
    "method": (
        "objective", "objectives", "estimator", "rule", "noise", "directions_per", "readout", "adapt_ties", "probes",
    ),
    "run": (),  # what stands nowhere else
    "output": ("out", "markdown", "toml", "log_to", "health_every", "json"),
}  # fmt: skip
_OWN = ("help", "version")


def sort_flags(parser: argparse.ArgumentParser) -> None:
    """Move the flags of a command that stand in no group yet into theirs; positions and --help stay."""
    options = parser._optionals._group_actions
    flags = [action for action in options if action.dest not in _OWN]
    for title in _GROUPS:
        found = [action for action in flags if _group_of(action.dest) == title]
        if found:
            parser.add_argument_group(title)._group_actions.extend(found)
    options[:] = [action for action in options if action.dest in _OWN]


def actions_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The actions of a command that has several, such as `noback engine check`, by their names."""
    found = [action.choices for action in parser._get_positional_actions() if isinstance(action.choices, dict)]
    return dict(found[0]) if found else {}


def _group_of(dest: str) -> str:
    first = dest.split(".", maxsplit=1)[0]
    return next((title for title, values in _GROUPS.items() if first in values), "run")
