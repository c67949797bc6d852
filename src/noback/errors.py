"""What can go wrong for a person to act on: one sentence each, no traceback at the command line."""

from __future__ import annotations


class NobackError(Exception):
    """Something went wrong that the message explains; the command line exits with `exit_code`."""

    exit_code = 1


class InputError(NobackError):
    """What the person gave cannot be used: what was found, what was expected, what to do."""

    exit_code = 2


class InUseError(InputError):
    """Another process holds what is asked for."""


class DamagedError(InputError):
    """A file of a run is damaged or belongs to something else."""
