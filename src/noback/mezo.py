"""MeZO in the shape of a torch optimizer: `step(closure)` for any module and any closure that returns a number."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from noback.directions import AnyNoise, seeds_of
from noback.engines import Perturbed, TensorNames, keep_freed_memory
from noback.errors import DamagedError, InputError, NobackError
from noback.estimators import AnyEstimator, TwoSided, estimate
from noback.journal import Contents, Journal, StepRecord
from noback.options import positive
from noback.replaying import recorded_move
from noback.rules import AnyRule, Sgd
from noback.usual import AUTO
from noback.values import Move
from noback.weights import Weights


class MeZO:
    """Tunes the parameters of a module that require a gradient, though none is ever taken.

    >>> optimizer = MeZO(model, lr=1e-5, eps=1e-3, seed=0)
    >>> loss = optimizer.step(lambda: criterion(model(inputs), targets))

    The closure is called once at each point of the estimator: by default twice a direction. While it runs, every torch
    function sees the module's tuned tensors at a perturbed point; the tensors themselves are written by the update
    alone. With `journal`, every step is recorded before the weights move; a journal that exists is first replayed,
    which brings a freshly loaded base model to where a killed process left it.
    """

    def __init__(  # noqa: PLR0913 (options by name)
        self,
        model: nn.Module,
        *,
        lr: float | None = None,
        eps: float | None = None,
        seed: int = 0,
        directions: int | None = None,
        weight_decay: float | None = None,
        estimator: AnyEstimator | None = None,
        rule: AnyRule | None = None,
        noise: AnyNoise | str | None = None,
        journal: str | os.PathLike[str] | None = None,
    ) -> None:
        """`lr`, `eps`, `directions` and `weight_decay` are short for the options of `rule` and `estimator`.

        None: eps 1e-3, one two-sided direction, no decay, the estimator's usual noise.
        """
        if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
            raise InputError(
                "a scripted or traced module hides its weights from torch functions; give the module itself"
            )
        if not isinstance(seed, int) or not 0 <= seed < 2**64:
            raise InputError(f"seed is {seed!r}; expected a whole number from 0 to {2**64 - 1}")
        self._estimator = _with(estimator or TwoSided(), eps=eps, directions=directions)
        self._estimator = _with(self._estimator, eps=self._estimator.eps or 1e-3)
        self._rule = _with(rule or Sgd(), lr=lr, weight_decay=weight_decay)
        _check_rule(self._rule)
        if self._rule.keeps_moments:
            raise InputError(
                f"rule {self._rule.kind!r} keeps numbers of every weight, which an optimizer's state does not hold; "
                "use it with noback.train, or another rule here"
            )
        self._seed = seed
        tuned = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
        self._weights = Weights(tuned, noise or self._estimator.usual_noise)
        self._names = TensorNames(tuned.items(), self._weights)
        self._records: list[StepRecord] = []  # the last ones, as many as the rule asks for
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
        return float(self._rule.lr or 0.0)

    @lr.setter
    def lr(self, value: float) -> None:
        positive("lr", value)
        if self._journal is not None:
            raise InputError("lr cannot change while a journal is kept: its header holds one lr for all steps")
        self._rule = dataclasses.replace(self._rule, lr=value)

    @torch.no_grad()
    def step(self, closure: Callable[[], float | Tensor]) -> float:
        """Take a step and return the mean loss of its points."""
        if self._moving:
            raise NobackError(
                "a step was interrupted while the weights moved; load the base model and the journal anew"
            )
        self._weights.look()
        seeds = seeds_of(self._weights.family, self._seed, self._steps, self._estimator.directions)
        found = estimate(self._estimator, seeds, lambda points: [self._loss(closure, point) for point in points])
        if not all(math.isfinite(value) for value in (found.loss, *found.slopes, *found.figures)):
            raise NobackError(f"the loss is {found.loss} at step {self._steps}; the weights were not moved")
        record = StepRecord(self._steps, found.loss, found.slopes, found.figures)
        if self._journal is not None:
            self._journal.append(record)
        self._moving = True
        self._weights.advance([self._next_move(record)])
        self._moving = False
        return found.loss

    def digest(self) -> str:
        """A digest of the tuned tensors."""
        return self._weights.digest()

    def state_dict(self) -> dict[str, Any]:
        """All that the optimizer knows besides the weights: a step count and its options."""
        recent = [dataclasses.asdict(record) for record in self._records]
        return {"steps": self._steps, **self._options(), **({"recent": recent} if recent else {})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; the options must be the same, or the directions would be others."""
        options = self._options()
        for name in dict.fromkeys((*options, "estimator", "rule")):
            theirs, ours = state.get(name), options.get(name)
            if theirs != ours:
                raise InputError(f"{name} of the state is {theirs!r}, of this optimizer {ours!r}; make them equal")
        if self._journal is not None and state["steps"] != self._steps:
            raise InputError(f"the state is at step {state['steps']}, the journal at step {self._steps}")
        self._steps = int(state["steps"])
        self._records = [
            StepRecord(one["step"], one["loss"], tuple(one["slopes"]), tuple(one["figures"]))
            for one in state.get("recent", [])
        ]

    def _loss(self, closure: Callable[[], float | Tensor], point: Move) -> float:
        with Perturbed(self._weights, self._names, [point]):
            loss = closure()
        if isinstance(loss, Tensor) and loss.numel() != 1:
            raise InputError(f"the closure returned a tensor of shape {tuple(loss.shape)}; expected one number")
        return float(loss)

    def _next_move(self, record: StepRecord) -> Move:
        """The move of the next step, whose record this is."""
        records = [*self._records, record]
        move = recorded_move(self._rule, self._seed, 1, records, len(records) - 1, noise=self._weights.family)
        memory = self._rule.memory
        self._records = records[-memory:] if memory else []
        self._steps += 1
        return move

    def _options(self) -> dict[str, Any]:
        """What decides a step; plain MeZO's as 0.1.0 wrote them, other kinds with their own options."""
        plain = {
            "lr": self._rule.lr,
            "weight_decay": self._rule.weight_decay,
            "eps": self._estimator.eps,
            "directions": self._estimator.directions,
            "seed": self._seed,
            "noise": self._weights.family.kind,
        }
        of_noise = _given(self._weights.family)
        plain |= {"noise_options": of_noise} if of_noise else {}
        own = {"estimator": _own(self._estimator, TwoSided()), "rule": _own(self._rule, Sgd())}
        return plain | {name: options for name, options in own.items() if options}

    def _open_journal(self, path: Path) -> Journal:
        header = {
            "mezo": self._options(),
            "base": self.digest(),
            "directions": self._estimator.directions,
            "figures": list(self._estimator.figures),
        }
        if not path.exists():
            return Journal.create(path, header)
        journal, contents = Journal.reopen(path)
        self._check(contents, header, path)
        self._weights.advance([self._next_move(record) for record in contents.steps])
        return journal

    def _check(self, contents: Contents, header: dict[str, Any], path: Path) -> None:
        for key, what in (("mezo", "with other options"), ("base", "from other weights")):
            if contents.header.get(key) != header[key]:
                raise DamagedError(
                    f"journal {str(path)!r} was made {what}; give the base model and options it began with"
                )


_PLAIN = ("lr", "weight_decay", "eps", "directions")  # stand by themselves in a state and a header, as 0.1.0 wrote them


def _with(options: Any, **values: float | None) -> Any:
    """Option objects with the values that were given."""
    if isinstance(options, type) or not hasattr(options, "kind"):
        raise InputError(f"{options!r} is no estimator or rule; expected an object, such as OneSided() or Momentum()")
    return dataclasses.replace(options, **{name: value for name, value in values.items() if value is not None})


def _own(options: Any, usual: Any) -> dict[str, Any]:
    """The kind and options of an object that is not of the usual kind; of one that is, what `plain` does not say."""
    given = _given(options)
    if options.kind != usual.kind:
        return {"kind": options.kind, **given}
    return {name: value for name, value in given.items() if name not in _PLAIN and value != getattr(usual, name)}


def _given(options: Any) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(options).items() if value is not None}


def _check_rule(rule: AnyRule) -> None:
    """Refuse a rule that a loop of one's own cannot use."""
    if rule.lr == AUTO:
        raise InputError("lr is 'auto', and MeZO has no data to try rates on; give lr a number, or use noback.train")
    if rule.lr is None:
        raise InputError("MeZO has no lr; give lr=... or a rule with one")
    if rule.schedule != "constant":
        raise InputError(
            f"schedule is {rule.schedule!r}, but MeZO does not know how many steps will come; "
            "set the optimizer's lr as you go"
        )
