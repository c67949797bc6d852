"""What can go wrong for a person to act on: one sentence each, no traceback at the command line."""

from __future__ import annotations


class NobackError(Exception):
    """Something went wrong that the message explains; the command line exits with `exit_code`."""

    exit_code = 1


class InputError(NobackError):
    """What the person gave cannot be used: what was found, what was expected, what to do."""

    exit_code = 2


class NoNumbers(NobackError):
    """What the model answers is no number: nan or infinite; `found` says where."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"{found}: the weights have diverged, or the model does not run in its dtype; take the weights of an "
            "earlier step (--at best), or train anew with a smaller lr"
        )
        self.found = found


class Diverged(NobackError):
    """A run's answers or losses ceased to be numbers, so it stopped."""


class InUseError(InputError):
    """Another process holds what is asked for."""


class DamagedError(InputError):
    """A file of a run is damaged or belongs to something else."""
