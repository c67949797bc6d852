"""The completion scripts of three shells, from the commands and their flags."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

Shown = Callable[[Sequence[str]], str]  # a shell's words for what may be completed

FILES = "<files>"  # stands among values for every file and folder


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag, its help, and what may follow it where it takes a value."""

    name: str
    help: str
    values: tuple[str, ...]
    takes_value: bool


@dataclass(frozen=True, slots=True)
class Command:
    """A command, its flags, and what may stand at its positions."""

    name: str
    help: str
    flags: tuple[Flag, ...]
    positions: tuple[str, ...]

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """What may stand where no flag asks for a value."""
        return self.positions or tuple(flag.name for flag in self.flags)


def bash(commands: Sequence[Command]) -> str:
    """A function for `complete -F`."""
    return f"""# Completion of noback for bash; made by `noback completion bash`.
_noback() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} command=${{COMP_WORDS[1]}}
    local words= files=
    if [[ $current == = ]]; then current=; fi
    if [[ $before == = ]]; then before=${{COMP_WORDS[COMP_CWORD - 2]}}; fi
    if ((COMP_CWORD == 1)); then
        words={_quoted([*(command.name for command in commands), "--help", "--version"])}
    else
        case "$command $before" in
{_cases(commands, "            ", _bash_values)}
            *)
                case "$command $current" in
{_cases_of_flags(commands, "                    ", _bash_values)}
                esac
                ;;
        esac
    fi
    COMPREPLY=()
    if [[ -n $words ]]; then mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current"); fi
    if [[ -n $files ]]; then
        compopt -o filenames 2> /dev/null
        mapfile -t -O "${{#COMPREPLY[@]}}" COMPREPLY < <(compgen -f -- "$current")
    fi
}}
complete -F _noback noback
"""


def zsh(commands: Sequence[Command]) -> str:
    """A function for `compdef`."""
    described = "\n".join(f"            {shlex.quote(f'{one.name}:{one.help}')}" for one in commands)
    return f"""#compdef noback
# Completion of noback for zsh; made by `noback completion zsh`.
_noback() {{
    local command=$words[2] before=$words[CURRENT-1]
    if ((CURRENT == 2)); then
        local -a commands
        commands=(
{described}
        )
        _describe command commands
        return
    fi
    case "$command $before" in
{_cases(commands, "        ", _zsh_values)}
        *)
            case "$command $PREFIX" in
{_cases_of_flags(commands, "                ", _zsh_values)}
            esac
            ;;
    esac
}}
compdef _noback noback
"""


def fish(commands: Sequence[Command]) -> str:
    """One line a command and a flag."""
    lines = ["# Completion of noback for fish; made by `noback completion fish`.", "complete -c noback -f"]
    for command in commands:
        lines.append(f"complete -c noback -n __fish_use_subcommand -a {command.name} -d {_fish(command.help)}")
        seen = f"complete -c noback -n '__fish_seen_subcommand_from {command.name}'"
        if command.positions:
            lines.append(f"{seen}{_fish_values(command.positions)}")
        for flag in command.flags:
            value = (_fish_values(flag.values) or " -x") if flag.takes_value else ""
            required = " -r" if flag.takes_value and " -x" not in value else ""
            lines.append(f"{seen} -l {flag.name.removeprefix('--')}{required}{value} -d {_fish(flag.help)}")
    return "\n".join(lines) + "\n"


SCRIPTS = {"bash": bash, "zsh": zsh, "fish": fish}


def _cases(commands: Iterable[Command], indent: str, shown: Shown) -> str:
    """A case for each flag that takes a value."""
    return "\n".join(
        f'{indent}"{command.name} {flag.name}") {shown(flag.values)} ;;'
        for command in commands
        for flag in command.flags
        if flag.takes_value
    )


def _cases_of_flags(commands: Iterable[Command], indent: str, shown: Shown) -> str:
    """Two cases a command: a word that begins as a flag, and any other."""
    lines = []
    for command in commands:
        lines.append(f'{indent}"{command.name} -"*) {shown([flag.name for flag in command.flags])} ;;')
        lines.append(f'{indent}"{command.name} "*) {shown(command.elsewhere)} ;;')
    return "\n".join(lines)


def _bash_values(values: Sequence[str]) -> str:
    words = [value for value in values if value != FILES]
    parts = [f"words={_quoted(words)}"] if words else []
    return "; ".join([*parts, *(["files=yes"] if FILES in values else [])]) or ":"


def _zsh_values(values: Sequence[str]) -> str:
    words = [value for value in values if value != FILES]
    parts = [f"compadd -- {shlex.join(words)}"] if words else []
    return "; ".join([*parts, *(["_files"] if FILES in values else [])]) or ":"


def _fish_values(values: Sequence[str]) -> str:
    """Choices alone exclude files; files alone are fish's own completion."""
    words = [value for value in values if value != FILES]
    named = f" -a {_fish(' '.join(words))}" if words else ""
    return (" -F" if FILES in values else " -x" if words else "") + named


def _quoted(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))


def _fish(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
