"""A run: the parts put together, and what they do at one step."""

from __future__ import annotations

import dataclasses
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from noback.adapters import Full, Head, base_tensors, refuse_quantised
from noback.answers import Answers, Written, fitted, reward_score, rewards_of, side_by_side, text_score, with_any_right
from noback.config import RunConfig, config_of, read_config
from noback.engines import (
    STILL,
    Engine,
    Local,
    Opened,
    Tally,
    Writing,
    chosen_device,
    model_limit,
    open_classifier,
    open_model,
)
from noback.errors import DamagedError, InputError
from noback.estimators import TwoSided
from noback.folder import RunFolder
from noback.journal import Contents, StepRecord, read_journal
from noback.late import MeanLoss, Scored, advance, scored
from noback.objectives import METRICS, Function, LanguageModel, Reward, accuracy, answer_loss, confusion, cross_entropy
from noback.snapshot import newest_snapshot
from noback.tasks import Batch, Drawn, Task, TaskSpec, draw_examples, spec_for
from noback.tensor_bytes import digest, packed, rounded_start, unpacked
from noback.values import Estimate, Move, Score, direction_seeds
from noback.watching import Silent, Watcher
from noback.weights import Weights

_REPLAY_CHUNK = 64  # steps of a replay in one pass over the weights


@dataclass(frozen=True, slots=True)
class Measured:
    """A step's estimate, and for its health the slopes along each direction by either half of the batch.

    The halves are computed when they are asked for: the weights need not wait for them.
    """

    estimate: Estimate
    halves: Callable[[], Sequence[tuple[float, float]]]


class Run:
    """A configuration, its model and engine, and the folder that records it."""

    def __init__(
        self, config: RunConfig, folder: RunFolder, watcher: Watcher | None = None, spec: TaskSpec | None = None
    ) -> None:
        """`spec` is the task as a journal recorded it; none: as the configuration names it."""
        self._spec = spec or spec_for(config.task, config.columns)
        config = fitted(config.settled(), self._spec)
        self.config, self.folder, self.watcher = config, folder, watcher or Silent()
        self.device = chosen_device(config.device)
        self.model, self.tokenizer, fresh = self._opened()
        self.base = digest(base_tensors(self.model))
        for_head = config.adapter.head_seed is not None
        self.task = Task(self._spec, self.tokenizer, model_limit(self.model), for_head=for_head)
        self.weights = Weights(config.adapter.attach(self.model, fresh, config.seed), config.noise)
        self._begin(None if config.adapter.portable else rounded_start(self.weights.tensors))
        self.engine: Engine = Local(
            self.model,
            self.weights,
            self.task.word_ids,
            probes_per_pass=config.probes_per_pass,
            micro_batch=config.micro_batch,
            tf32=config.products == "tf32",
            hold=not isinstance(config.objective, Reward) or config.objective.hold,
            share=config.share,
            say=self.watcher.note,
            meanwhile=self._stage,
        )
        self._shown: int | None = None  # the last step whose batch was asked for
        self._staged: tuple[int, Batch] | None = None

    def _begin(self, start: Mapping[str, Tensor] | None) -> None:
        """Let the weights begin with these; a small adapter's are kept, to come back to without the model's file."""
        if start is not None:
            self.weights.load(start)
        self.start = self.weights.digest()
        whole = sum(tensor.numel() for tensor in self.model.parameters())
        small = 4 * self.weights.size < whole or not self.config.adapter.portable
        self._start = {name: tensor.clone() for name, tensor in self.weights.tensors.items()} if small else None

    def begin_with(self, contents: Contents) -> None:
        """Take the start that a journal holds where it cannot be made again; refuse a journal of other weights."""
        self._check_base(contents)
        if "start_tensors" in contents.header:
            self._begin(unpacked(contents.header["start_tensors"]))
        started = contents.header.get("start", self.start)
        if started != self.start:
            raise DamagedError(
                f"journal {str(self.folder.journal)!r} began with another adapter ({started[:12]}) "
                f"than the one that is there now ({self.start[:12]}); put the one it began with back"
            )

    def _opened(self) -> Opened:
        """The base model as its folder or the hub gives it, with a fresh head where the adapter asks for one."""
        name, dtype, seed = self.config.model, self.config.dtype, self.config.adapter.head_seed
        if self.config.quantise is not None and isinstance(self.config.adapter, (Full, Head)):
            refuse_quantised(self.config.adapter.kind)
        if seed is None:
            causal = self._spec.is_causal
            return open_model(name, dtype, self.device, causal=causal, quantise=self.config.quantise)
        if self._spec.is_causal:
            raise InputError(
                f"adapter 'head' is for masked models and task {self._spec.name!r} is for causal ones; "
                "use full, lora or prefix"
            )
        return open_classifier(name, dtype, self._spec.labels, seed, self.device)

    @property
    def late(self) -> bool:
        """Whether a step's losses are computed on a GPU, which can then move the weights before anyone reads them.

        Where ties raise eps, the next step needs the slopes. It is one or the other for a whole run: a step that is
        taken again after a crash has the same loss to the bit, whoever waits for it.
        """
        known = isinstance(self.config.objective, MeanLoss) and isinstance(self.engine, Local)
        return known and self.config.estimator.adapt_ties is None and self.device.type == "cuda"

    def tally(self) -> Tally:
        """The tokens that this process has scored, and how many of them were not computed again."""
        return self.engine.tally if isinstance(self.engine, Local) else Tally()

    def header(self) -> dict[str, Any]:
        """What the journal says about itself: with the base weights, enough to replay it."""
        return {
            "format": 1,
            "config": self.config.recorded(),
            "config_digest": self.config.digest(),
            "task": self.task.spec.table(),
            "base": self.base,
            "start": self.start,
            **({} if self.config.adapter.portable else {"start_tensors": packed(self.weights.tensors)}),
            "data": self.task.digest(),
            "directions": self.config.estimator.directions,
            "device": device_name(self.device),
            "versions": versions(),
        }

    def answers(self, name: str) -> Answers:
        """The label logits of a whole set with the weights as they stand, its gold labels, and what was written."""
        if isinstance(self.config.objective, Reward):
            written = self._written(name)
            texts = [one.text for one in written]
            rewards = rewards_of(self.config.objective, self.task.questions(name), texts)
            return Answers(rewards, torch.zeros(len(rewards), dtype=torch.long), written)
        parts, gold, done = [], [], 0
        for batch in self.task.batches(name, self.config.batch):
            parts.append(self.engine.score(batch, [STILL])[0])
            gold.append(batch.gold)
            done += len(batch)
            self.watcher.progress(f"answering the {name} set", done, self.task.size(name))
        logits = side_by_side(parts)
        return Answers(logits, with_any_right(logits, torch.cat(gold), self.task.rights(name)), self._written(name))

    def _written(self, name: str) -> tuple[Written, ...]:
        """The answers that are written, where the task asks for such."""
        if self._spec.answer != "text":
            return ()
        questions, size, texts = self.task.questions(name), self.config.batch, list[str]()
        for begin in range(0, len(questions), size):
            texts += self.write([one.ids for one in questions[begin : begin + size]])
            self.watcher.progress(f"writing answers to the {name} set", len(texts), len(questions))
        return tuple(Written(text, one.right) for text, one in zip(texts, questions, strict=True))

    def write(self, prompts: Sequence[Sequence[int]]) -> list[str]:
        """What the model writes after some prompts of tokens."""
        return self._written_at(prompts, [STILL])[0]

    def _written_at(self, prompts: Sequence[Sequence[int]], points: Sequence[Move]) -> list[list[str]]:
        """What the model writes after some prompts at each point."""
        writing = Writing(self.tokenizer, self._spec.max_new_tokens, self._spec.stop)
        return [writing.texts(tokens) for tokens in self.engine.write(prompts, points, writing)]

    def score(self, name: str) -> Score:
        """Answer a whole set with the weights as they stand."""
        return self.scored(*self.answers(name))

    def scored(
        self, logits: Tensor, gold: Tensor, written: Sequence[Written] = (), *, with_objective: bool = True
    ) -> Score:
        """How good some answers are; the objective may be a function that is not at hand after the run."""
        if isinstance(self.config.objective, Reward):
            return reward_score(logits)
        objective = self.loss(logits, gold) if with_objective else None
        if written:
            return text_score(self._spec.metric, written, answer_loss(logits, gold), objective)
        predicted = logits.argmax(dim=1)
        return Score(
            accuracy=accuracy(predicted, gold),
            score=METRICS[self.task.spec.metric](predicted, gold),
            loss=cross_entropy(logits, gold),
            objective=objective,
            examples=len(gold),
            confusion=confusion(predicted, gold, logits.shape[1]) if self._spec.labels else [],
        )

    def loss(self, logits: Tensor, gold: Tensor) -> float:
        """The run's objective."""
        return self.config.objective.loss(logits, gold, self.task.texts)

    @property
    def metric(self) -> str:
        """What a score is: the task's own metric, or the reward."""
        return "reward" if isinstance(self.config.objective, Reward) else self._spec.metric

    def batch(self, step: int) -> Batch:
        """The batch of a step, made before where a GPU left the time."""
        staged, self._shown = self._staged, step
        if staged is not None and staged[0] != step + 1:  # a step may be asked for again
            self._staged = None
        return staged[1] if staged is not None and staged[0] == step else self._batch(step)

    def _stage(self) -> None:
        """Make the next step's batch."""
        if self._shown is not None and self._staged is None:
            self._staged = self._shown + 1, self._batch(self._shown + 1)

    def _batch(self, step: int) -> Batch:
        answer_only = isinstance(self.config.objective, LanguageModel)
        return self.task.batch(step, self.config.batch, self.config.seed, answer_only=answer_only)

    def outputs(self, step: int, points: Sequence[Move]) -> tuple[list[Tensor], Tensor]:
        """What the objective judges of a step's batch at each point, and its gold labels [examples].

        Label logits [examples, labels]; for a reward, what it gives for the texts that are written there [examples, 1].
        """
        objective = self.config.objective
        if not isinstance(objective, Reward):
            batch = self.batch(step)
            return self.engine.score(batch, points), batch.gold
        questions = self.task.step_questions(step, self.config.batch, self.config.seed)
        written = self._written_at([one.ids for one in questions], points)
        return [rewards_of(objective, questions, texts) for texts in written], torch.zeros(
            len(questions), dtype=torch.long
        )

    def measure(self, step: int, eps: float) -> Measured:
        """Show the step's batch to the engine at the estimator's points."""
        estimator, seeds = self._asked(step, eps)
        if self.late:
            found, gold = self._begun(step, estimator.points(seeds))
            return self._measured(estimator, seeds, found.losses(), found.outputs(), gold)
        outputs, gold = self.outputs(step, estimator.points(seeds))
        return self._measured(estimator, seeds, [self.loss(output, gold) for output in outputs], outputs, gold)

    def take(self, step: int, eps: float) -> Callable[[], Measured]:
        """Measure a step and move the weights by it, where `late`; what is returned waits for what was measured."""
        estimator, seeds = self._asked(step, eps)
        found, gold = self._begun(step, estimator.points(seeds))
        pace = self.config.rule.pace(step, self.config.steps, len(seeds))
        advance(self.weights, found, seeds, estimator, pace)
        return lambda: self._measured(estimator, seeds, found.losses(), found.outputs(), gold)

    def _asked(self, step: int, eps: float) -> tuple[TwoSided, tuple[int, ...]]:
        """A step's estimator and the seeds of its directions."""
        estimator = dataclasses.replace(self.config.estimator, eps=eps, adapt_ties=None)
        return estimator, direction_seeds(self.config.seed, step, estimator.directions)

    def _begun(self, step: int, points: Sequence[Move]) -> tuple[Scored, Tensor]:
        """What a step's batch gives at each point, without waiting for it, and its gold labels."""
        batch, objective = self.batch(step), self.config.objective
        assert isinstance(self.engine, Local)
        assert isinstance(objective, MeanLoss)
        return scored(self.engine, batch, points, objective), batch.gold

    def _measured(
        self,
        estimator: TwoSided,
        seeds: Sequence[int],
        losses: Sequence[float],
        outputs: Sequence[Tensor],
        gold: Tensor,
    ) -> Measured:
        estimate = estimator.estimate(seeds, losses)
        if len(gold) < 2 or isinstance(self.config.objective, Function):  # one's own function may be dear
            return Measured(estimate, tuple)

        def halves() -> Sequence[tuple[float, float]]:
            slopes = (
                estimator.estimate(seeds, [self.loss(output[half], gold[half]) for output in outputs]).slopes
                for half in (slice(0, None, 2), slice(1, None, 2))
            )
            return list(zip(*slopes, strict=True))

        return Measured(estimate, halves)

    def move(self, record: StepRecord) -> Move:
        """The move that a record stands for."""
        seeds = direction_seeds(self.config.seed, record.step, len(record.slopes))
        return self.config.rule.move(record.step, self.config.steps, Estimate(record.loss, seeds, record.slopes))

    def step_length(self, move: Move) -> float:
        """How far a move goes: directions have unit variance and are all but orthogonal."""
        return math.sqrt(sum(term.coefficient**2 for term in move.terms) * self.weights.size)

    def go_to(self, step: int, contents: Contents, *, snapshots: bool = True) -> None:
        """Bring the weights to where `step` steps took them: the newest snapshot or the base, then the journal."""
        found = newest_snapshot(self.folder.snapshots, step) if snapshots else None
        done, tensors = found or (0, None)
        if tensors is None and self.weights.digest() != self.start:
            tensors = self._start or self._attached_anew()
        if tensors is not None:
            self.weights.load(tensors)
        for begin in range(done, step, _REPLAY_CHUNK):
            records = contents.steps[begin : min(begin + _REPLAY_CHUNK, step)]
            self.weights.advance([self.move(record) for record in records])
            self.watcher.progress("replaying the journal", begin + len(records), step)

    def _attached_anew(self) -> dict[str, Tensor]:
        model, _, fresh = self._opened()
        return self.config.adapter.attach(model, fresh, self.config.seed)

    def _check_base(self, contents: Contents) -> None:
        """Refuse a journal that was made from other weights."""
        header = contents.header
        if header["base"] != self.base:
            raise DamagedError(
                f"journal {str(self.folder.journal)!r} was made from other base weights "
                f"({header['base'][:12]}) than model {self.config.model!r} has ({self.base[:12]}); "
                "name the model it was made from with --model"
            )


def drawn_data(config: RunConfig) -> Drawn:
    """The three sets that a configuration describes."""
    spec = spec_for(config.task, config.columns)
    return draw_examples(
        spec, config.data, config.shots, config.data_seed, config.test_limit, demonstrations=config.demonstrations
    )


def recorded_config(folder: RunFolder) -> RunConfig:
    """The run's configuration; one that was changed after the journal began is refused."""
    folder.check()
    config = config_of(read_config(folder.config))
    if folder.journal.is_file():
        written = config_of(read_journal(folder.journal).header["config"]).recorded()
        now = config.recorded()
        for key in sorted({*written, *now}):
            if written.get(key) != now.get(key):
                raise InputError(
                    f"{key} in {str(folder.config)!r} is {now.get(key)!r}, but the journal was made with "
                    f"{written.get(key)!r}; put it back, or train anew with the new value"
                )
    return config


def device_name(device: torch.device) -> str:
    """What a journal calls a device."""
    return "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)


def versions() -> dict[str, str]:
    """The versions that a journal names."""
    names: Sequence[str] = ("noback", "numpy", "torch", "transformers")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}
