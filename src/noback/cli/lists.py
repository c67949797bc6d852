"""Flags that are given several values with commas between, for `noback sweep`."""

from __future__ import annotations

import argparse
from typing import Any

from noback.cli.commands import listed
from noback.cli.flags import takes_list, value_of
from noback.keywords import config_flags


def taken_lists(arguments: argparse.Namespace) -> dict[str, list[Any]]:
    """The options with several values, each by its place; the first of them is left to the flag itself."""
    over: dict[str, list[Any]] = {}
    for flag, path in config_flags().items():
        text = getattr(arguments, path)
        if text is not None and "," in text and takes_list(path):
            parts = listed(flag, text)
            over[path] = [value_of(part, path) for part in parts]
            setattr(arguments, path, parts[0])
    settings = []
    for pair in arguments.set:
        path, _, text = (part.strip() for part in pair.partition("="))
        if "," in text and takes_list(path):
            parts = listed(f"--set {path}", text)
            over[path] = [value_of(part, path) for part in parts]
            settings.append(f"{path}={parts[0]}")
        else:
            settings.append(pair)
    arguments.set = settings
    return over
