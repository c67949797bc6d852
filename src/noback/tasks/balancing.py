"""Labels in equal shares, whatever their shares of a set are: in batches, and in the losses of an evaluation."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def balanced_places(golds: Sequence[int], step: int, size: int, seed: int) -> list[int]:
    """Which examples a step's batch holds: a pure function of the labels, the seed and the step.

    The labels take turns, from batch to batch too, so that a batch has each as often as any other or once more. Each
    label's examples come in an order of their own, and in a new one when all have been seen: those of a rare label come
    more often.
    """
    groups, chosen = _by_label(golds), []
    for position in range(step * size, (step + 1) * size):
        turn, label = divmod(position, len(groups))
        group = groups[label]
        epoch, index = divmod(turn, len(group))
        chosen.append(group[int(_order(seed, label, epoch, len(group))[index])])
    # Label by label: a run compares the slopes of every other example with the rest, and both have the same shares.
    return sorted(chosen, key=golds.__getitem__)


def label_weights(golds: Sequence[int]) -> list[float]:
    """A weight for each example under which every label weighs the same; their mean is one."""
    counts = Counter(golds)
    return [len(golds) / (len(counts) * counts[gold]) for gold in golds]


def repeated_places(golds: Sequence[int]) -> list[int]:
    """The examples of a set, those of rarer labels again and again until each label has as many."""
    most = max(Counter(golds).values(), default=0)
    return [place for group in _by_label(golds) for place in itertools.islice(itertools.cycle(group), most)]


def _by_label(golds: Sequence[int]) -> list[list[int]]:
    """The places of each label's examples."""
    groups: dict[int, list[int]] = {}
    for place, gold in enumerate(golds):
        groups.setdefault(gold, []).append(place)
    return [groups[label] for label in sorted(groups)]


@lru_cache(maxsize=64)
def _order(seed: int, label: int, epoch: int, size: int) -> NDArray[np.int64]:
    """An order of a label's examples; the legacy generator's streams are frozen, so it holds for ever."""
    digest = hashlib.blake2s(f"balanced order {seed} {label} {epoch}".encode(), digest_size=4).digest()
    return np.random.RandomState(int.from_bytes(digest, "little")).permutation(size)
