"""Where people already look: TensorBoard, Trackio and Weights & Biases, each told what the run's own files hold.

A tracker sees a run from outside. One that fails is dropped with a sentence, and the run goes on with the same bits.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from noback.errors import InputError
from noback.options import one_of
from noback.values import Estimate, Score
from noback.watching import Silent


class Book(Protocol):
    """A tracker's run that is open for writing."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write some values of a step."""

    def close(self) -> None:
        """Finish."""


class Trackers(Silent):
    """A watcher that writes to the trackers of some names; `close` it when the run has ended."""

    def __init__(self, names: Sequence[str], say: Callable[[str], None] | None = None) -> None:
        for name in names:
            one_of("--log-to", name, TRACKERS)
            if importlib.util.find_spec(name) is None:
                raise InputError(f"--log-to {name} needs a library that is not here: pip install 'noback[{name}]'")
        self._names, self._books = list(dict.fromkeys(names)), dict[str, Book]()
        self._say = say or warnings.warn

    def began(self, folder: Path, config: Mapping[str, Any], step: int) -> None:
        """Open each tracker's run under the folder's name; what was open before is closed."""
        self.close()
        for name in self._names:
            with self._guarded(name):
                self._books[name] = TRACKERS[name](folder, _flat(config), step)

    def stepped(self, step: int, _steps: int, estimate: Estimate) -> None:
        """The loss, the mean slope and its size."""
        slopes = estimate.slopes
        values = {"train/loss": estimate.loss, "train/slope": sum(slopes) / len(slopes)}
        self._log({**values, "train/abs_slope": sum(map(abs, slopes)) / len(slopes)}, step)

    def evaluated(self, step: int, score: Score) -> None:
        """The figures of an evaluation."""
        values = {"accuracy": score.accuracy, "score": score.score, "loss": score.loss, "objective": score.objective}
        self._log({f"validation/{name}": value for name, value in values.items() if value is not None}, step)

    def measured(self, step: int, figures: Mapping[str, float]) -> None:
        """The health of some steps."""
        self._log({f"health/{name}": value for name, value in figures.items()}, step)

    def close(self) -> None:
        """Finish every run that is open."""
        for name, book in list(self._books.items()):
            with self._guarded(name):
                book.close()
        self._books.clear()

    def _log(self, values: Mapping[str, float], step: int) -> None:
        for name, book in list(self._books.items()):
            with self._guarded(name):
                book.log(values, step)

    @contextlib.contextmanager
    def _guarded(self, name: str) -> Any:
        """A tracker's prints go to stderr; its failure is told once and costs the run nothing."""
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        except Exception as error:  # noqa: BLE001 (whatever a tracker raises, the run goes on)
            self._books.pop(name, None)
            self._say(f"{name} failed ({type(error).__name__}: {error}); the run goes on without it")


class _TensorBoard:
    def __init__(self, folder: Path, config: Mapping[str, Any], step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What a killed process logged beyond the journal is hidden by `purge_step`.
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)
        self._writer.add_text("configuration", "\n".join(f"- {key}: `{value}`" for key, value in config.items()), step)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Trackio:
    def __init__(self, folder: Path, config: Mapping[str, Any], _step: int) -> None:
        import trackio

        self._run: Any = trackio.init(
            project="noback", name=folder.resolve().name, config=dict(config), resume="allow", embed=False,
            auto_log_cpu=False, auto_log_gpu=False,
        )  # fmt: skip

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        import trackio

        trackio.finish()  # type: ignore[no-untyped-call] # forgets the run, so that nothing is printed when Python ends


class _Wandb:
    def __init__(self, folder: Path, config: Mapping[str, Any], _step: int) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")  # local unless asked
        self._run = wandb.init(
            project="noback", name=folder.resolve().name, dir=str(folder), config=dict(config), mode=mode,
            settings=wandb.Settings(console="off", silent=True),
        )  # fmt: skip

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, Callable[[Path, Mapping[str, Any], int], Book]] = {
    "tensorboard": _TensorBoard,
    "trackio": _Trackio,
    "wandb": _Wandb,
}


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted names."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value})
    return flat
