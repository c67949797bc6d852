"""The local engine: a Hugging Face model in this process, its probes batched into one forward."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from noback.engines.attending import Attending, masked_as_captured
from noback.engines.displaced import Displaced, TensorNames, standing_at
from noback.engines.generation import Writing
from noback.engines.graphs import Graphs
from noback.engines.last import OnlyAt, are_few, last_layer
from noback.engines.loading import model_limit
from noback.engines.probed import Probes
from noback.engines.readout import by_example, readout_for, readout_of, without_cache
from noback.engines.sharing import BACK, POSITIONS, SHARED, TARGETS, Plan, Sharing, Tally, by_row, plain_inputs, widened
from noback.errors import InputError
from noback.options import one_of
from noback.tasks import Batch
from noback.values import Move
from noback.weights import Weights

T = TypeVar("T")
_BUCKET = 8  # on a GPU, tokens are padded to a multiple of so many


class Local:
    """Scores all points of a step in one forward, or `probes_per_pass` of them at a time."""

    def __init__(  # noqa: PLR0913 (options by name)
        self,
        model: Any,
        weights: Weights,
        word_ids: Sequence[int] | None,
        *,
        probes_per_pass: int | None = None,
        micro_batch: int | None = None,
        tf32: bool = False,
        hold: bool = True,
        share: str = "all",
        say: Callable[[str], None] = lambda _: None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """`word_ids` none: a head or a batch's candidates are read. `micro_batch` bounds the examples of a forward.

        `tf32` lets a GPU round the factors of float32 products; `hold` lets a point's tensors be formed once for a
        whole text; `share` names what a causal model computes once on a CPU (`sharing.SHARED`); `say` is told what
        the engine had to change; `meanwhile` is called while a GPU works.
        """
        one_of("share", share, SHARED)
        self._model = model.eval()
        self._weights = weights
        self._readout = readout_of(model, word_ids)
        self._settings = without_cache(model)
        self._names = TensorNames(model.named_parameters(), weights)
        self._probes_per_pass, self._micro_batch = probes_per_pass, micro_batch
        self._tf32, self._hold, self._say, self._meanwhile = tf32, hold, say, meanwhile
        self._device = weights.device
        self._graphs = Graphs(self._device) if self._device.type == "cuda" else None
        early = (lambda: None) if self._graphs is None else self._graphs.cut
        self._probes = Probes(model, weights, self._readout.rows, early)
        self._captured_with: object = None  # the sweeps over the weights where they stood then
        self._limit = model_limit(model) or sys.maxsize
        self._padding = getattr(model.config, "pad_token_id", None) or 0
        self._checked = False  # whether a displaced forward was seen to equal the same points one by one
        self.point_by_point = False  # the model does not take probes side by side
        self._last = last_layer(model, self._names)
        self._parts: dict[object, bool] = {}  # kinds of forwards, and whether a part of that layer was seen to do
        self._was_cut = False  # whether the last forward left a part of it out
        self._stood = False  # whether held tensors were seen to write what a point writes under `Displaced`
        # Captured forwards want few shapes, and trees come in many: a GPU shares nothing yet.
        self._sharing = Sharing(model, self._names, "none" if self._graphs is not None else share)
        self._shares: dict[object, bool] = {}  # kinds of plans, and whether they were seen to give the plain scores
        self.tally = Tally()  # tokens that were given and how many of them were not computed

    @property
    def weights(self) -> Weights:
        """The tuned tensors."""
        return self._weights

    @torch.inference_mode()
    def score(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        """The label logits of the batch at each point: float32 [examples, labels] each, on the CPU."""
        return list(self.logits(batch, points).cpu())  # the one moment of a step that waits for a GPU

    @torch.inference_mode()
    def logits(self, batch: Batch, points: Sequence[Move]) -> Tensor:
        """The same as one tensor [points, examples, labels] where the model is; a GPU is not waited for."""
        while True:
            cut = self._asked(batch, points)
            try:
                with self._on_the_device():
                    return self._scored(batch, points, *cut)
            except torch.OutOfMemoryError as error:
                self._take_less(*cut, error)

    @torch.inference_mode()
    def write(
        self, prompts: Sequence[Sequence[int]], points: Sequence[Move], writing: Writing
    ) -> list[list[list[int]]]:
        """The tokens that the model writes after each prompt, at each point: one point after the other."""
        return [self._written(prompts, point, writing) for point in points]

    def _written(self, prompts: Sequence[Sequence[int]], point: Move, writing: Writing) -> list[list[int]]:
        while True:
            try:
                with self._on_the_device():
                    if point.terms and self._hold and not self._stood:
                        self._check_held(prompts[:1], point, writing)
                    with self._at(point, hold=self._hold):
                        parts = _cut(prompts, self._micro_batch)
                        return [tokens for part in parts for tokens in writing.tokens(self._model, part)]
            except torch.OutOfMemoryError as error:
                self._take_less(*self._asked(prompts, [point]), error)

    def _check_held(self, prompts: Sequence[Sequence[int]], point: Move, writing: Writing) -> None:
        """Trust held tensors only once they wrote what the point writes where every function sees it."""
        found = []
        for hold in (True, False):
            with self._at(point, hold=hold):
                found.append(writing.tokens(self._model, prompts))
        self._stood, self._hold = True, found[0] == found[1]
        if not self._hold:
            self._say("the model uses tuned tensors in a way of its own; each token forms them anew, which is slower")

    def _at(self, point: Move, *, hold: bool) -> AbstractContextManager[Any]:
        """Within, the model stands at a point."""
        if not point.terms:
            return nullcontext()
        if hold:
            return standing_at(self._model, self._weights, self._names, point)
        return Displaced(self._weights, self._names, [point])

    def _asked(self, batch: Sized, points: Sequence[Move]) -> tuple[int, int]:
        """How many points and examples may go through the model at once."""
        return min(self._probes_per_pass or len(points), len(points)), min(self._micro_batch or len(batch), len(batch))

    def _scored(self, batch: Batch, points: Sequence[Move], probes: int, examples: int) -> Tensor:
        scores: list[Tensor] = []
        for together in _cut(points, probes):
            parts = [self._pass(part, together) for part in _micro_batches(batch, examples)]
            scores.extend(torch.cat(list(of_point)) for of_point in zip(*parts, strict=True))
        logits = torch.stack(scores)
        if self._graphs is not None:
            with torch.inference_mode(mode=False):  # what is made there is for anyone
                self._meanwhile()
        return logits

    def _take_less(self, probes: int, examples: int, error: Exception) -> None:
        """Halve what goes through the model at once, remember it and say so; one example at one point must fit."""
        if self._graphs is not None:
            self._graphs.forget()
        torch.cuda.empty_cache()
        if probes > 1:
            self._probes_per_pass = probes = probes // 2
        elif examples > 1:
            self._micro_batch = examples = examples // 2
        else:
            raise InputError(
                "the GPU's memory does not hold one example at one point; use a smaller dtype or model, or --device cpu"
            ) from error
        self._say(f"out of GPU memory; from now on {probes} points and {examples} examples at a time")

    @contextmanager
    def _on_the_device(self) -> Iterator[None]:
        """Within, a GPU's work goes to the engine's stream, its float32 products in TF32 only where that was asked."""
        if self._graphs is None:
            yield
            return
        self._weights.look()
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self._tf32 else "highest")
        stream, around = self._graphs.stream, torch.cuda.current_stream(self._device)
        stream.wait_stream(around)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            around.wait_stream(stream)
            torch.set_float32_matmul_precision(before)

    def _pass(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        if not self._checked and _moving(points):
            return self._first_displaced_pass(batch, points)
        plan = None if self.point_by_point else self._plan(batch, points)
        self.tally = self._sharing.count(self.tally, batch, plan, len(points))
        if self.point_by_point:
            return self._alone(batch, points)
        return self._probed(batch, points) if plan is None else self._shared(batch, points, plan)

    def _plan(self, batch: Batch, points: Sequence[Move]) -> Plan | None:
        """What of the forward is done once: a plan of a kind that gives the plain scores; none: nothing."""
        plan = self._sharing.plan(batch, len(points))
        if plan is None:
            return None
        kind = (*plan.kind, any(point.terms for point in points))
        if kind not in self._shares:
            self._shares[kind] = self._is_right(batch, points, plan)
        return plan if self._shares[kind] else None

    def _is_right(self, batch: Batch, points: Sequence[Move], plan: Plan) -> bool:
        """Whether a plan gives what the batch gives without it; it is said where it does not."""
        try:
            found = self._shared(batch, points, plan)
        except Exception:  # noqa: BLE001 (whatever went wrong, the plain way serves)
            found = []
        plain = self._probed(batch, points)
        agree = self._agree(found, plain)
        if not agree:
            self._say(f"{type(self._model).__name__} does not share {plan}; it is scored the plain way")
        return agree

    def _shared(self, batch: Batch, points: Sequence[Move], plan: Plan) -> list[Tensor]:
        logits = self._forward(plan.inputs, points, plan.below, part=self._in_part(plan.inputs, points, plan.below))
        return [by_example(one, batch.candidates) for one in logits.chunk(len(points))]

    def _first_displaced_pass(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        """Trust probes side by side only once they gave what the points give one by one.

        A model may hide the batch (tokens first, relative positions) or use a tuned tensor outside the module that
        owns it; its slopes would be wrong in silence.
        """
        # A first dimension that is not points x rows, or a multiple, raises; tokens must not be such by chance.
        tokens = next(iter(self._inputs(batch).values())).shape[1]
        seen = batch.part(slice(0, -1)) if tokens % (len(points) * batch.rows) == 0 and len(batch) > 1 else batch
        together, alone = self._tried(seen, points), self._alone(seen, points)
        agree = self._agree(together, alone)
        self.point_by_point = not agree or bool(self._probes.used_outside)
        self._checked = True
        if seen is not batch or self._sharing.active:
            # What every later pass gives, to the bit: a run resumed here must go on as one that never stopped.
            return self._pass(batch, points)
        return alone if self.point_by_point else together

    def _tried(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        """All points in one forward; nothing where the model does not take them."""
        try:
            return self._probed(batch, points)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # noqa: BLE001 (whatever went wrong, the plain way decides)
            return []

    def _agree(self, found: Sequence[Tensor], plain: Sequence[Tensor]) -> bool:
        return bool(found) and all(self._close(*pair) for pair in zip(found, plain, strict=True))

    def _close(self, one: Tensor, other: Tensor, share: float = 1.0) -> bool:
        """Whether two scores differ by the rounding of the weights' type, or of a GPU's products, or a share of it."""
        half = any(tensor.dtype == torch.bfloat16 for tensor in self._weights.tensors.values())
        allowed = 5e-2 if half else 2e-2 if self._tf32 and self._graphs is not None else 2e-4
        real = other != float("-inf")  # where an example has a candidate
        one, other = one[real], other[real]
        return bool((one - other).abs().max() <= share * allowed * (1 + other.abs().max()))

    def _alone(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        inputs = {name: tensor.to(self._device) for name, tensor in self._inputs(batch).items()}
        return [by_example(self._displaced(inputs, point), batch.candidates) for point in points]

    def _probed(self, batch: Batch, points: Sequence[Move]) -> list[Tensor]:
        """All points in one forward, probe-major."""
        inputs, order = self._inputs(batch), None
        if self._graphs is not None:
            sweeps = self._weights.place(points)
            order = sweeps.order(points)
            if sweeps is not self._captured_with:
                self._graphs.forget()
                self._captured_with = sweeps
        part = self._in_part(inputs, points)
        forward = partial(self._forward, points=points, part=part)
        logits = forward(inputs) if self._graphs is None else self._graphs((order, part), inputs, forward)
        return [by_example(one, batch.candidates) for one in logits.chunk(len(points))]

    def _in_part(self, inputs: Mapping[str, Tensor], points: Sequence[Move], below: int = 0) -> bool:
        """Whether the last layer is computed for what is read only: where the first of a kind was seen to be right."""
        moving, some = _moving(points), TARGETS in inputs or self._readout.of_some
        if self._graphs is not None and moving and self._probes.learning:
            # What is captured, and checked, is what later forwards do.
            self._forward(self._graphs.brought(inputs), points)
        if self._last is None or not (some and are_few(inputs[POSITIONS], inputs["input_ids"].shape[1])):
            return False
        kind = moving, below > 0, TARGETS in inputs, BACK in inputs
        if kind not in self._parts:
            self._parts[kind] = self._does_in_part(inputs, points, below)
        return self._parts[kind]

    def _does_in_part(self, inputs: Mapping[str, Tensor], points: Sequence[Move], below: int) -> bool:
        """Whether the last layer gives what it gives whole."""
        brought = inputs if self._graphs is None else self._graphs.brought(inputs)
        whole = self._forward(brought, points, below)
        try:
            found = self._forward(brought, points, below, part=True)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # noqa: BLE001 (whatever the layer does, it is computed whole)
            return False
        return self._was_cut and self._close(found, whole, share=0.25)

    def _inputs(self, batch: Batch) -> dict[str, Tensor]:
        """What a forward takes; for a GPU with tokens up to the next bucket, so that few shapes are seen."""
        inputs = plain_inputs(batch)
        more = self._more(inputs["input_ids"].shape[1])
        for name in batch.inputs if more else ():
            inputs[name] = F.pad(inputs[name], (0, more), value=self._padding if name == "input_ids" else 0)
        return inputs

    def _more(self, tokens: int) -> int:
        """How many tokens a forward's rows are padded by."""
        return 0 if self._graphs is None else min(-tokens % _BUCKET, max(self._limit - tokens, 0))

    def _forward(
        self, inputs: Mapping[str, Tensor], points: Sequence[Move], below: int = 0, *, part: bool = False
    ) -> Tensor:
        """The label logits of all points, probe-major; of candidates, those of each row.

        The layers `below` see one copy of the batch, the others one a probe; the last one computes `part` of its
        tokens.
        """
        probes, rows = len(points), len(inputs[POSITIONS])
        positions = torch.cat([inputs[POSITIONS]] * probes)
        copied = {name: _copies(tensor, 1 if below else probes) for name, tensor in _plain(inputs).items()}
        readout = readout_for(inputs.get(TARGETS), self._model, self._readout)
        above = widened(self._sharing.layers[below:], rows, probes) if below else None
        only_at = OnlyAt(self._last, positions) if self._last is not None and part else None
        on_gpu: list[Any] = [] if self._graphs is None else [masked_as_captured(), Attending()]
        with ExitStack() as stack:
            for context in (self._probes.at(points, rows), only_at, above, readout.reading(positions), *on_gpu):
                stack.enter_context(context or nullcontext())
            logits = self._model(**copied, **self._settings).logits
        self._was_cut = only_at is not None and only_at.cut
        return readout.label_logits(by_row(logits, inputs.get(BACK), probes))

    def _displaced(self, inputs: Mapping[str, Tensor], point: Move) -> Tensor:
        """One point by itself: every torch function sees the tuned tensors there. Right for any model, and slower."""
        displaced = Displaced(self._weights, self._names, [point]) if point.terms else nullcontext()
        rows = self._probes.asked_rows(point, len(inputs[POSITIONS]))
        readout = readout_for(inputs.get(TARGETS), self._model, self._readout)
        with displaced, rows, readout.reading(inputs[POSITIONS]):
            return readout.label_logits(self._model(**_plain(inputs), **self._settings).logits)


def _plain(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the model itself takes."""
    return {name: tensor for name, tensor in inputs.items() if name not in (POSITIONS, TARGETS, BACK)}


def _copies(tensor: Tensor, count: int) -> Tensor:
    """[rows, ...] as [count x rows, ...]"""
    return tensor if count == 1 else tensor.repeat(count, *(1 for _ in tensor.shape[1:]))


def _moving(points: Sequence[Move]) -> bool:
    return any(point.terms for point in points)


def _cut(items: Sequence[T], size: int | None) -> Iterator[Sequence[T]]:
    size = size or len(items)
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]


def _micro_batches(batch: Batch, size: int | None) -> Iterator[Batch]:
    for rows in _cut(range(len(batch)), size):
        yield batch.part(slice(rows[0], rows[-1] + 1))
