"""A run's parts put together: task, model, tuned weights and engine, and the folder that records what they do."""

from __future__ import annotations

import hashlib
import platform
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from noback.adapters import base_tensors, model_limit, refuse_quantised
from noback.answers import fitted, left_out
from noback.config import RunConfig, config_of, read_config
from noback.distributed import Group, World, check_divide, unparted
from noback.embedded import MODELS
from noback.engines import (
    IN_MEMORY,
    Cuts,
    DataParallel,
    Engine,
    Models,
    Opened,
    WithRows,
    WrongKind,
    check_loaded,
    chosen_device,
    divide_adapters,
    division_of,
    identity_of,
    open_classifier,
    open_divided,
    open_model,
    open_outline,
    rows_shape,
)
from noback.errors import InputError, NobackError, NoReadout, shown
from noback.files import is_regular
from noback.folder import RunFolder
from noback.grouping import groups_of
from noback.header import check_run, spelled_out
from noback.journal import read_header
from noback.objectives import TEXTS
from noback.readouts import LabelRows
from noback.tasks import Batch, Drawn, Task, TaskSpec, draw_examples
from noback.tensor_bytes import digest, rounded_start
from noback.watching import Silent, Watcher
from noback.weights import Weights


class Run:
    """A configuration, its model and engine, and the folder that records it."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder | None = None,
        watcher: Watcher | None = None,
        spec: TaskSpec | None = None,
        *,
        world: World | None = None,
        models: Models | None = None,
        loaded: Opened | None = None,
    ) -> None:
        """`folder` none: nothing is recorded. `spec` is the task as a journal has it; none: as `config` names it.

        `world`: the ranks that share the scoring; none: this process alone.
        `models`: where base models are kept for several runs; none: the model's files are opened.
        `loaded`: a model that is in memory, to be tuned there; none: the one that `config` names is opened.
        """
        self.world, self._models = world or World(), models
        self.spec = spec or config.spec()
        self.watcher = watcher or Silent()
        self.config = config = _settled(config, self.spec, self.world, self.watcher.note)
        self._folder = folder
        self.device = chosen_device(config.device or (None if config.engine.needs_base else "cpu"))
        config.engine.check(
            adapter=config.adapter,
            causal=self.spec.is_causal,
            written=self.spec.answer == "text" or config.objective.judges == TEXTS,
            dtype=config.dtype,
            quantise=config.quantise,
            noise_rank=config.known_noise.rank,
            readout=config.readout is not None,
        )
        self._in_memory = loaded is not None
        if self.world.group is not None:
            _check_divides(config, in_memory=self._in_memory)
        if loaded is not None:
            check_loaded(loaded, causal=self.spec.is_causal, head=config.adapter.head_seed is not None)
        opened, self.base, cuts = self._open() if loaded is None else _whole(loaded)
        self.model, self.tokenizer = opened.model, opened.tokenizer
        self.identity = identity_of(opened, chat=self.spec.chat, written=self.spec.answer == "text")
        for_head = config.adapter.head_seed is not None
        self.task = Task(self.spec, self.tokenizer, model_limit(self.model), for_head=for_head)
        self.weights = _attached(self.config, self.world.group, opened, cuts)
        config.rule.check_weights(self.weights.size)
        self.begin(None if config.adapter.portable else rounded_start(self.weights.tensors))
        rows = _rows_of(config, self.task, self.model, self.device, self.watcher.note)
        self.config = config = replace(config, readout=None if rows is None else rows.readout)
        self.engine: Engine = config.engine.open(
            self.model,
            self.weights,
            self.task.word_ids,
            hold=config.objective.hold,
            features=rows is not None,
            say=self.watcher.note,
            meanwhile=self._make_next_batch,
            name=config.model,
            adapter=config.adapter,
            mark=mark_of(folder),
            divided=self.world.group is not None,
        )
        alone, self.readout = self.engine, WithRows(self.engine, rows) if rows is not None else None
        self.engine = self.readout or alone
        self.shared: DataParallel | None = None  # the engine, where several ranks share what it scores
        if self.world.size > 1:
            if self.world.models > 1:
                check_divide(self.world.divide, self.world.models, config.estimator.forwards)
            labels = len(self.spec.labels)
            together = unparted(config.batch, config.engine.micro_batch, self.world.sharers(config.estimator.forwards))
            self.engine = self.shared = DataParallel(self.engine, self.world, labels, together)
            if rows is not None:  # a fit reads features, of which a step's exchange has none
                wide = DataParallel(alone, self.world, labels + rows.shape.width, together)
                self.readout = WithRows(wide, rows)
        self._asked: int | None = None  # the last step whose batch was asked for
        self._next: tuple[int, Batch] | None = None  # a batch that was made ahead, and its step

    @property
    def is_recorded(self) -> bool:
        """Whether the run has a folder; one that was opened only to score has none."""
        return self._folder is not None

    @property
    def folder(self) -> RunFolder:
        """Where the run is recorded."""
        if self._folder is None:
            raise NobackError("this run has no folder: it was opened to score, not to train")
        return self._folder

    @property
    def groups(self) -> list[slice]:
        """The groups of a step's examples that have directions of their own; one where they are the step's."""
        taken = self.task.size("train") or self.config.batch  # a run that only answers may have no training set
        return groups_of(min(self.config.batch, taken), self.config.directions_per)

    @property
    def directions(self) -> int:
        """Directions of a step: each has a seed, and a slope in the record."""
        return len(self.groups) * self.config.estimator.directions

    @property
    def runs_ahead(self) -> bool:
        """Whether the weights may move on a GPU before the step's losses are read and recorded.

        Where ties raise eps, the next step needs the slopes. It is one or the other for a whole run: a step that is
        taken again after a crash has the same loss to the bit, whoever waits for it.
        """
        config = self.config
        fixed = config.estimator.fixed_points and config.rule.runs_ahead and config.adapt_ties is None
        return fixed and config.objective.on_device and self.engine.runs_ahead

    @property
    def readout_values(self) -> bytes:
        """The readout's values as a journal holds them; empty where the run has none."""
        return b"" if self.readout is None else self.readout.rows.stored()

    @property
    def metric(self) -> str:
        """What a score is: the metric that was asked for, or the task's own, or the reward."""
        return "reward" if self.config.objective.judges == TEXTS else self.config.metric or self.spec.metric

    def loss(self, logits: Tensor, gold: Tensor) -> float:
        """The run's objective."""
        return self.config.objective.loss(logits, gold, self.task.texts)

    def loss_of(self, reduced: Tensor, gold: Tensor) -> float:
        """The run's objective, by what it needs of each example."""
        return self.config.objective.loss_of(reduced, gold, self.task.texts)

    def batch(self, step: int) -> Batch:
        """The batch of a step, made before where a GPU left the time."""
        ahead, self._asked = self._next, step
        if ahead is not None and ahead[0] != step + 1:  # a step may be asked for again
            self._next = None
        return ahead[1] if ahead is not None and ahead[0] == step else self._make_batch(step)

    def begin(self, start: Mapping[str, Tensor] | None) -> None:
        """Let the weights begin with these; a small adapter's are kept, to come back to without the model's file."""
        if start is not None:
            self.weights.load(start)
        self.start = self.weights.digest()
        whole = sum(tensor.numel() for tensor in self.model.parameters())
        small = 4 * self.weights.held < whole or not self.config.adapter.portable
        place = None if small else torch.device("cpu")  # no file need have those of a model in memory
        tensors = self.weights.tensors if small or self._in_memory else {}
        self._start = {name: tensor.to(place, copy=True) for name, tensor in tensors.items()} or None

    def start_tensors(self) -> Mapping[str, Tensor]:
        """What the weights began with."""
        if self._start is not None:
            return self._start
        opened, _, cuts = self._open()
        return _attached(self.config, self.world.group, opened, cuts).tensors

    def _open(self) -> tuple[Opened, str, Cuts]:
        """The base model, its digest, and how its tensors are cut where ranks hold it together.

        Where no forward is run here it is the model's form alone, and the digest that its files give, or "".
        """
        config, group, causal = self.config, self.world.group, self.spec.is_causal
        if group is not None:
            return open_divided(config.model, config.dtype, self.device, causal=causal, group=group)
        if config.engine.needs_base or config.adapter.tunes_base:
            return _whole(self._open_base())
        return *open_outline(config.model, config.dtype), {}

    def _open_base(self) -> Opened:
        """The base model as its folder or the hub gives it, with a fresh head where the adapter asks for one."""
        config, seed = self.config, self.config.adapter.head_seed
        if config.model == IN_MEMORY:
            raise InputError(
                "the run was trained from a model that was given in memory and has no name; save that model as it was "
                "before training (save_pretrained) and name its folder with --model"
            )
        if config.quantise is not None and config.adapter.tunes_base:
            refuse_quantised(config.adapter.kind)
        if seed is None:
            causal = self.spec.is_causal
            open_base = self._models.open_model if self._models else open_model
            try:
                return open_base(config.model, config.dtype, self.device, causal=causal, quantise=config.quantise)
            except WrongKind as error:
                raise InputError(_other_template(config)) if config.template is not None else error from None
        if self.spec.is_causal:
            raise InputError(
                f"adapter 'head' is for masked models and task {self.spec.name!r} is for causal ones; "
                "use full, lora or prefix"
            )
        open_head = self._models.open_classifier if self._models else open_classifier
        return open_head(config.model, config.dtype, self.spec.labels, seed, self.device)

    def _make_next_batch(self) -> None:
        if self._asked is not None and self._next is None:
            self._next = self._asked + 1, self._make_batch(self._asked + 1)

    def _make_batch(self, step: int) -> Batch:
        config = self.config
        answer_only, balanced = config.objective.answer_only, config.balance is not None
        return self.task.batch(step, config.batch, config.seed, answer_only=answer_only, balanced=balanced)


def take_options(run: Run, config: RunConfig) -> None:
    """Let a run go on with another rule's options, or another seed; a batch that was made ahead may be another's."""
    run.config, run._asked, run._next = config, None, None


def mark_of(folder: RunFolder | None) -> str:
    """What tells a run's adapters on a server from others': the same in each process that goes on with it."""
    place = secrets.token_hex(4) if folder is None else str(folder.path.resolve())
    return hashlib.blake2b(place.encode(), digest_size=4).hexdigest()


def _whole(opened: Opened) -> tuple[Opened, str, Cuts]:
    """A model of which all is here."""
    return opened, digest(base_tensors(opened.model)), {}


def _settled(config: RunConfig, spec: TaskSpec, world: World, say: Callable[[str], None]) -> RunConfig:
    """The configuration with what was left to usual values, and what its task allows; a readout that goes is told."""
    asked, divided = config.settled(), world.group is not None
    found = fitted(asked, spec, divided=divided)
    if asked.readout is not None and found.readout is None:
        say(left_out(asked, spec, divided=divided))
    return found


def _rows_of(
    config: RunConfig, task: Task, model: Any, device: torch.device, say: Callable[[str], None]
) -> LabelRows | None:
    """The rows of a run's readout, at zero; None where it has none."""
    if config.readout is None:
        return None
    try:
        if task.word_ids is None:
            raise NoReadout(
                f"a readout stands on top of label words of one token each, and those of task {task.spec.name!r} are "
                "several for this tokenizer",
                "choose other words, or leave it out (--readout words)",
            )
        prompt = task.prompts([("a",) * len(task.spec.sentences)]).to(device)
        shape = rows_shape(model.eval(), len(task.word_ids), prompt.inputs)
    except NoReadout as error:
        if not config.readout.if_possible:
            raise
        say(f"readout: left out: {error.why}")
        return None
    return LabelRows(config.readout.settled(), shape, device)


def _attached(config: RunConfig, group: Group | None, opened: Opened, cuts: Cuts) -> Weights:
    """What is tuned of a model, once the adapter is there; `group`: the ranks that hold it together."""
    tuned = config.adapter.attach(opened.model, opened.fresh, config.seed)
    if group is None:
        return Weights(tuned, config.known_noise, masks=config.adapter.masks(tuned))
    tuned, cuts = divide_adapters(opened.model, tuned, cuts, group)
    return Weights(tuned, config.known_noise, division_of(cuts, group))


def _check_divides(config: RunConfig, *, in_memory: bool) -> None:
    """Refuse what needs a whole model where ranks hold one together."""
    needs = {
        "a model in memory": in_memory,
        f"engine {config.engine.kind!r}": not config.engine.needs_base,
        "--quantise": config.quantise is not None,
        "--readout": config.readout is not None,
        f"adapter {config.adapter.kind!r}": not config.adapter.divides,
    }
    for what, is_there in needs.items():
        if is_there:
            raise InputError(
                f"ranks hold a model together as its files have it, with adapter full or lora; {what} needs the whole "
                "of it: leave out --tensor-parallel"
            )


def _other_template(config: RunConfig) -> str:
    """What to do where a template is for models of the other kind."""
    if config.spec().is_causal:
        return (
            f"template {shown(config.template)} has no mask and model {config.model!r} is a masked LM; write {{mask}} "
            "where the label word goes, or choose a causal model such as mini-causal"
        )
    return (
        f"template {shown(config.template)} has a mask and model {config.model!r} is a causal LM, which writes the "
        "label word next; end the template before the mask, or choose a masked model such as mini"
    )


def drawn_data(config: RunConfig, spec: TaskSpec | None = None) -> Drawn:
    """The three sets that a configuration describes; `spec`: the task as a journal has it, in place of its file."""
    spec = spec or config.spec()
    return draw_examples(
        spec, config.data, config.shots, config.data_seed, config.test_limit, demonstrations=config.demonstrations
    )


def recorded_config(folder: RunFolder) -> RunConfig:
    """The run's configuration; one that was changed after the journal began is refused."""
    folder.check()
    config = config_of(spelled_out(read_config(folder.config)))
    if is_regular(folder.journal):
        header = read_header(folder.journal)
        check_run(header, f"journal {str(folder.journal)!r}")
        recorded = config_of(spelled_out(header["config"]))
        if config.steps in header.get("extended", []):  # a process was killed as it made the run longer
            config = config.extended(recorded.steps)
        written, now = recorded.recorded(), config.recorded()
        for key in sorted({*written, *now}):
            if written.get(key) != now.get(key):
                raise InputError(
                    f"{key} in {str(folder.config)!r} is {now.get(key)!r}, but the journal was made with "
                    f"{written.get(key)!r}; put it back, or train anew with the new value"
                )
    kept = config.data is not None and Path(config.data).name == folder.data.name and folder.data.is_dir()
    return replace(config, data=str(folder.data)) if kept and not Path(config.data or "").exists() else config


def device_name(device: torch.device) -> str:
    """What a journal calls a device."""
    return "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)


def versions() -> dict[str, str]:
    """The versions that a journal names."""
    names: Sequence[str] = ("noback", "numpy", "torch", "transformers")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}


def with_whole_paths(config: RunConfig) -> RunConfig:
    """Paths of this machine made absolute, so that a run can be resumed from any folder."""

    def whole(value: str) -> str:
        return str(Path(value).resolve()) if Path(value).exists() else value

    return replace(
        config,
        adapter=config.adapter.with_paths(whole),
        data=None if config.data is None else whole(config.data),
        model=config.model if config.model in MODELS else whole(config.model),
        task=whole(config.task) if config.task.endswith(".toml") else config.task,
    )
