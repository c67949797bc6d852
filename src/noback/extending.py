"""Making a run longer: its journal is written anew with more steps to take, and training goes on from there.

The records stay as they are; the header names the new number of steps, and the seal goes. A process may be killed at
any point: before the new journal takes the place of the old one the run is as it was, and from then on it is the longer
run, whose run.toml is brought in line by whoever resumes it. Snapshots are bound to the journal's digests, which change
with its header, so they are removed first; the journal alone gives the weights again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from noback.config import RunConfig
from noback.errors import InputError
from noback.files import is_regular, write_whole
from noback.folder import RunFolder
from noback.header import steps_of
from noback.journal import Contents, read_header, read_journal, rewrite
from noback.options import whole
from noback.refitting import fit_steps
from noback.rules import lr_at
from noback.run import recorded_config
from noback.snapshot import remove_snapshots
from noback.values import MOST_STEPS


def planned(folder: RunFolder, steps: int) -> RunConfig:
    """The configuration of a run with so many steps in all; nothing is written, what cannot be is refused."""
    whole("steps", steps, MOST_STEPS)
    config = recorded_config(folder)
    if not is_regular(folder.journal):
        raise InputError(f"run {str(folder.path)!r} has not begun; begin it as it is: noback resume {folder.path}")
    if steps == config.steps:
        return config
    contents, longer = read_journal(folder.journal), config.extended(steps)
    _check(folder, config, dataclasses.replace(contents, header=_header(contents.header, longer)), steps)
    return longer


def extend(folder: RunFolder, config: RunConfig) -> None:
    """Let the folder, whose lock is held, say what a longer run's would; one that does already is left as it is."""
    header = read_header(folder.journal)
    if steps_of(header) != config.steps:
        remove_snapshots(folder.snapshots)
        rewrite(folder.journal, _header(header, config))
    settle(folder)


def settle(folder: RunFolder) -> RunConfig:
    """The configuration of a run whose lock is held; where a killed process left the shorter run's, it is mended."""
    config = recorded_config(folder)
    if is_regular(folder.journal) and "extended" in read_header(folder.journal):
        write_whole(folder.config, config.toml())
    return config


def _header(header: Mapping[str, Any], longer: RunConfig) -> dict[str, Any]:
    """The header of the longer run; it keeps how many steps there were to be before."""
    before = [*header.get("extended", []), steps_of(header)]
    return {**header, "config": longer.recorded(), "config_digest": longer.digest(), "extended": before}


def _check(folder: RunFolder, config: RunConfig, longer: Contents, steps: int) -> None:
    """Refuse what cannot be made longer so that it is what a longer run would have been."""
    where, taken = f"run {str(folder.path)!r}", len(longer.steps)
    if steps < config.steps:
        raise InputError(f"{where} has {config.steps} steps and --steps is {steps}; a run can only be made longer")
    if not longer.is_chained:
        raise InputError(f"{where} was made by noback 0.1.0, whose journals cannot be made longer; train anew")
    rule = config.settled().rule
    if any(lr_at(rule, step, config.steps) != lr_at(rule, step, steps) for step in range(taken)):
        raise InputError(
            f"{where} has schedule {rule.schedule!r}, under which a run of {steps} steps would have taken its first "
            f"{taken} with other learning rates; train anew with --steps {steps}"
        )
    fits = [sorted(one for one in fit_steps(each) if one <= taken) for each in (config, config.extended(steps))]
    if fits[0] != fits[1]:
        raise InputError(
            f"{where} fitted its readout at steps {', '.join(map(str, fits[0]))}, where a run of {steps} steps would "
            f"have at {', '.join(map(str, fits[1]))}; train anew with --steps {steps}"
        )
    if longer.stopped_early:
        raise InputError(
            f"{where} stopped early after {taken} steps, as its patience ({config.patience}) was at its end, and would "
            "stop there again; train anew with a larger --patience"
        )
