"""A command's help in a terminal's width: paragraphs filled, examples broken where their lines are too long."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator


class HelpText(argparse.HelpFormatter):
    """As argparse's own, but a description keeps its paragraphs, and its examples their lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks = re.split(r"\n\s*\n", text.strip("\n"))
        return "\n\n".join(indent + ("\n" + indent).join(_block(block, width)) for block in blocks)


def usage_of(parser: argparse.ArgumentParser) -> str:
    """A command in one line: what it takes, and that there are options."""
    return " ".join([parser.prog, *_positionals(parser), "[OPTIONS]"])


def _positionals(parser: argparse.ArgumentParser) -> Iterator[str]:
    """What a command takes besides options, as its usage shows it."""
    for action in parser._get_positional_actions():
        word = str(action.metavar or action.dest)
        yield {"?": f"[{word}]", "*": f"[{word} ...]", "+": f"{word} [{word} ...]"}.get(str(action.nargs), word)


def _block(block: str, width: int) -> Iterator[str]:
    """The lines of a paragraph, or of examples, which are indented."""
    if block.startswith(" "):
        for line in block.splitlines():
            yield from _example(line, width)
    else:
        yield from textwrap.wrap(" ".join(block.split()), width, break_long_words=False, break_on_hyphens=False)


def _example(line: str, width: int) -> Iterator[str]:
    """A command and, after some spaces, a remark: in one line, or the remark below; a long command goes on below."""
    if len(line) <= width:
        yield line
        return
    command, _, remark = line.strip().partition("   ")
    yield from _command(command, width)
    if remark:
        yield from textwrap.wrap(remark.strip(), width, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _command(command: str, width: int) -> Iterator[str]:
    """A command, parted before a flag, a pipe or a second text where it is too long; a shell reads it as one."""
    line = " "
    for part in re.split(r" (?=--\w|\|)|(?<=\") (?=\")", command):
        if len(line) + len(part) + 3 > width and line.strip():  # room for a space and the backslash
            yield line + " \\"
            line = "     "
        line += " " + part
    yield line
