"""MeZO in the shape of a torch optimizer: `step(closure)` for any module and any closure that returns a number."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from noback.engines import Displaced, TensorNames, keep_freed_memory
from noback.errors import DamagedError, InputError, NobackError
from noback.estimators import TwoSided
from noback.journal import Contents, Journal, StepRecord
from noback.options import positive
from noback.rules import Sgd
from noback.values import Estimate, Move, direction_seeds
from noback.weights import Weights


class MeZO:
    """Tunes the parameters of a module that require a gradient, though none is ever taken.

    >>> optimizer = MeZO(model, lr=1e-5, eps=1e-3, seed=0)
    >>> loss = optimizer.step(lambda: criterion(model(inputs), targets))

    The closure is called twice a direction. While it runs, every torch function sees the module's tuned tensors at a
    displaced point; the tensors themselves are written by the update alone. With `journal`, every step is recorded
    before the weights move; a journal that exists is first replayed, which brings a freshly loaded base model to
    where a killed process left it.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        eps: float = 1e-3,
        seed: int = 0,
        directions: int = 1,
        weight_decay: float = 0.0,
        noise: str = "normal",
        journal: str | os.PathLike[str] | None = None,
    ) -> None:
        if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
            raise InputError(
                "a scripted or traced module hides its weights from torch functions; give the module itself"
            )
        if not isinstance(seed, int) or not 0 <= seed < 2**64:
            raise InputError(f"seed is {seed!r}; expected a whole number from 0 to {2**64 - 1}")
        self._estimator = TwoSided(eps, directions)
        self._rule = Sgd(lr, weight_decay)
        self._seed = seed
        tuned = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
        self._weights = Weights(tuned, noise)
        self._names = TensorNames(tuned.items(), self._weights)
        self._steps = 0
        self._moving = False  # while it is set, the journal is a step ahead of the weights
        keep_freed_memory()
        self._journal = None if journal is None else self._open_journal(Path(journal))

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return self._steps

    @property
    def lr(self) -> float:
        """The learning rate; fixed while a journal is kept, which holds it once for all steps."""
        return self._rule.lr or 0.0

    @lr.setter
    def lr(self, value: float) -> None:
        positive("lr", value)
        if self._journal is not None:
            raise InputError("lr cannot change while a journal is kept: its header holds one lr for all steps")
        self._rule = Sgd(value, self._rule.weight_decay)

    @torch.no_grad()
    def step(self, closure: Callable[[], float | Tensor]) -> float:
        """Take a step and return the mean loss of its points."""
        if self._moving:
            raise NobackError(
                "a step was interrupted while the weights moved; load the base model and the journal anew"
            )
        self._weights.look()
        seeds = direction_seeds(self._seed, self._steps, self._estimator.directions)
        losses = [self._loss(closure, point) for point in self._estimator.points(seeds)]
        estimate = self._estimator.estimate(seeds, losses)
        if not all(math.isfinite(value) for value in (estimate.loss, *estimate.slopes)):
            raise NobackError(f"the loss is {estimate.loss} at step {self._steps}; the weights were not moved")
        record = StepRecord(self._steps, estimate.loss, estimate.slopes)
        if self._journal is not None:
            self._journal.append(record)
        self._moving = True
        self._weights.advance([self._move(record)])
        self._steps += 1
        self._moving = False
        return estimate.loss

    def digest(self) -> str:
        """A digest of the tuned tensors."""
        return self._weights.digest()

    def state_dict(self) -> dict[str, Any]:
        """All that the optimizer knows besides the weights: a step count and its options."""
        return {"steps": self._steps, **self._options()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; the options must be the same, or the directions would be others."""
        for name, value in self._options().items():
            if state.get(name) != value:
                raise InputError(
                    f"{name} of the state is {state.get(name)!r}, of this optimizer {value!r}; make them equal"
                )
        if self._journal is not None and state["steps"] != self._steps:
            raise InputError(f"the state is at step {state['steps']}, the journal at step {self._steps}")
        self._steps = int(state["steps"])

    def _loss(self, closure: Callable[[], float | Tensor], point: Move) -> float:
        with Displaced(self._weights, self._names, [point]):
            loss = closure()
        if isinstance(loss, Tensor) and loss.numel() != 1:
            raise InputError(f"the closure returned a tensor of shape {tuple(loss.shape)}; expected one number")
        return float(loss)

    def _move(self, record: StepRecord) -> Move:
        seeds = direction_seeds(self._seed, record.step, len(record.slopes))
        return self._rule.move(record.step, 0, Estimate(record.loss, seeds, record.slopes))

    def _options(self) -> dict[str, Any]:
        return {
            "lr": self._rule.lr,
            "weight_decay": self._rule.weight_decay,
            "eps": self._estimator.eps,
            "directions": self._estimator.directions,
            "seed": self._seed,
            "noise": self._weights.family.kind,
        }

    def _open_journal(self, path: Path) -> Journal:
        header = {"format": 1, "mezo": self._options(), "base": self.digest(), "directions": self._estimator.directions}
        if not path.exists():
            return Journal.create(path, header)
        journal, contents = Journal.reopen(path)
        self._check(contents, header, path)
        self._weights.advance([self._move(record) for record in contents.steps])
        self._steps = len(contents.steps)
        return journal

    def _check(self, contents: Contents, header: dict[str, Any], path: Path) -> None:
        for key, what in (("mezo", "with other options"), ("base", "from other weights")):
            if contents.header.get(key) != header[key]:
                raise DamagedError(
                    f"journal {str(path)!r} was made {what}; give the base model and options it began with"
                )
