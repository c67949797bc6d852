"""One forward of a model at several points: a function of its arguments, which leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from noback.engines.attention import Attention, Own, overridden, own_attention
from noback.engines.modules import handled, perturbed_modules
from noback.engines.modules.lora import is_lora
from noback.engines.modules.probes import Handled, PerturbedTensors, Probes, installed, is_perturbed
from noback.engines.perturbed import TensorNames, Watch
from noback.engines.readout import Readout, readout_for, readout_of, without_cache
from noback.engines.reuse.frozen_layers import widened
from noback.engines.reuse.inputs import BACK, POSITIONS, TARGETS, Inputs, by_row, of_the_model
from noback.engines.reuse.last_layer import OnlyAt, last_layer
from noback.engines.trust import Trust
from noback.values import Move
from noback.weights import Weights


@dataclass(frozen=True, slots=True)
class ProbedModel:
    """A model and what its forwards at several points need to know of it."""

    model: Any
    weights: Weights
    names: TensorNames
    readout: Readout
    settings: Mapping[str, bool]
    modules: Sequence[Handled]  # those that own tuned tensors
    asked: Sequence[Handled]  # linears of which some outputs are asked, tuned or not
    always: Sequence[Handled]  # those that are handled at the unperturbed point too
    last: nn.Module | None  # the layer that may be computed in part
    attention: Attention | None  # what computes the model's attention; none: its own way, which is left alone
    override: bool  # whether that is another function, or needs other masks, than the model's own
    trust: Trust
    features: bool  # whether what the decoder is given is handed out beside the label logits


class Learned(NamedTuple):
    """What the first forward at perturbed points shows of a model."""

    order: tuple[str, ...]  # the tuned tensors that are formed whole, in the order of their use
    outside: frozenset[str]  # those that something else than their own module used


class Outcome(NamedTuple):
    """What a forward gives."""

    # [points x rows, labels], probe-major; of candidates [points x rows, 1]. With features [points x rows, labels +
    # width]: one tensor, which a captured forward and the ranks of a run pass on as they do label logits.
    logits: Tensor
    learned: Learned | None
    cut: bool  # whether the last layer was computed in part


def probed_model(
    model: Any,
    weights: Weights,
    word_ids: Sequence[int] | None,
    trust: Trust,
    instead: Callable[[Own, Trust], Attention] | None,
    *,
    features: bool = False,
) -> ProbedModel:
    """Look a model over; `instead` says what computes its attention, with full masks; none: its own, with its own."""
    names, readout = TensorNames(model.named_parameters(), weights), readout_of(model, word_ids)
    asked = [handled(module) for module in readout.rows]
    deep = weights.family.rank > 0  # what a head forms whole for each probe is more than what its thin products are
    modules = [
        handled(module) for module in perturbed_modules(model, names, deep=deep) if module not in readout.rows
    ] + asked
    own = own_attention(model)
    return ProbedModel(
        model, weights, names, readout, without_cache(model), modules, asked,
        always=[*asked, *(one for one in modules if is_lora(one[0]))],
        last=None if own is None else last_layer(model, names),
        attention=None if own is None else own.function if instead is None else instead(own, trust),
        override=instead is not None,
        trust=trust,
        features=features,
    )  # fmt: skip


def forward(
    probed: ProbedModel,
    inputs: Inputs,
    points: Sequence[Move],
    learned: Learned | None,
    *,
    groups: int = 1,
    above: Sequence[nn.Module] = (),
    in_part: bool = False,
    after_a_layer: Callable[[], None] = lambda: None,
) -> Outcome:
    """All points at once. `learned` none: the first forward at perturbed points, which learns.

    `groups`: how many groups of rows have points of their own; then the first point of each comes first, and so on.
    `above`: the layers that see a copy of the batch for each probe, those below them seeing one; none: all see all.
    """
    count, rows, moving = len(points) // groups, len(inputs[POSITIONS]), is_perturbed(points)
    positions = torch.cat([inputs[POSITIONS]] * count)
    copied = {name: _copies(tensor, 1 if above else count) for name, tensor in of_the_model(inputs).items()}
    readout = readout_for(inputs.get(TARGETS), probed.model, probed.readout)
    order = () if learned is None else learned.order
    tensors = PerturbedTensors(probed.weights, probed.names, points, order, after_a_layer)
    watch, probes = Watch(probed.names), _probes(probed, points, inputs, tensors, groups)
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(installed(probed.modules if moving else probed.always, probes))
        if moving and learned is None:
            enter(watch)
        only_at = _attending(probed, stack, positions if in_part else None)
        if above:
            enter(widened(above, rows, count))
        enter(readout.reading(positions))
        logits = probed.model(**copied, **probed.settings).logits
    if moving and learned is None:
        learned = Learned(tuple(tensors.used), frozenset(watch.seen))
    cut = only_at is not None and only_at.cut
    back = inputs.get(BACK)
    read = readout.label_logits(by_row(logits, back, count))
    return Outcome(_with_features(read, probes.given, lambda given: by_row(given, back, count)), learned, cut)


def forward_alone(probed: ProbedModel, inputs: Inputs, point: Move) -> Tensor:
    """One point by itself: every torch function sees the tuned tensors there. Right for any model, and slower."""
    tensors = PerturbedTensors(probed.weights, probed.names, [point], order=None)
    readout = readout_for(inputs.get(TARGETS), probed.model, probed.readout)
    probes = replace(_probes(probed, [point], inputs, tensors), branches=False)
    with ExitStack() as stack:
        if point.terms:
            stack.enter_context(tensors.seen_by_all(0))
        stack.enter_context(installed(probed.asked, probes))
        stack.enter_context(readout.reading(inputs[POSITIONS]))
        read = readout.label_logits(probed.model(**of_the_model(inputs), **probed.settings).logits)
    return _with_features(read, probes.given)


def _attending(probed: ProbedModel, stack: ExitStack, positions: Tensor | None) -> OnlyAt | None:
    """Let a model attend as it should: with a GPU's kernel, and in its last layer at the positions only."""
    if probed.attention is None:
        return None
    attention, only_at = probed.attention, None
    if positions is not None and probed.last is not None:
        only_at = OnlyAt(probed.last, positions, attention)
        stack.enter_context(only_at.active())
        attention = only_at.attention
    if probed.override or only_at is not None:
        stack.enter_context(overridden(probed.model, attention, full_masks=probed.override))
    return only_at


def _probes(
    probed: ProbedModel, points: Sequence[Move], inputs: Inputs, tensors: PerturbedTensors, groups: int = 1
) -> Probes:
    rows, given = len(inputs[POSITIONS]) // groups, list[Tensor]() if probed.features else None
    return Probes(points, rows, tensors, probed.trust, probed.readout.rows, probed.asked, groups, given=given)


def _with_features(
    read: Tensor, given: list[Tensor] | None, laid: Callable[[Tensor], Tensor] = lambda given: given
) -> Tensor:
    """Label logits [rows, labels] with what the decoder was given at each row's position, where that was kept."""
    if given is None:
        return read
    return torch.cat([read, laid(torch.cat(given))[:, 0].float()], dim=1)


def _copies(tensor: Tensor, count: int) -> Tensor:
    """[rows, ...] as [count x rows, ...]"""
    return tensor if count == 1 else tensor.repeat(count, *(1 for _ in tensor.shape[1:]))
