"""RMSNorm and other norms that a model brings along: their own forward, once, with the vectors of all probes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from noback.engines.modules.kinds import Forward, holding, own_tensors
from noback.engines.modules.other import other
from noback.engines.modules.probes import Probes
from noback.engines.trust import near, output_tolerance


def has_vectors(module: nn.Module) -> bool:
    """Whether a module has vectors of one width and nothing below it."""
    vectors = own_tensors(module).values()
    alike = all(one.dim() == 1 for one in vectors) and len({len(one) for one in vectors}) == 1
    return alike and not [*module.children()]


def vectors(probes: Probes, module: nn.Module, forward: Forward, *args: Any, **kwargs: Any) -> Any:
    """At once where the module was seen to take vectors so, else probe by probe.

    Rows are [probes, rows, width] there and vectors [probes, 1, width], so that each probe's rows meet its own.
    """
    x = args[0] if len(args) == 1 and not kwargs and isinstance(args[0], Tensor) else None
    if x is None or not (probes.is_shared(x) or probes.is_flat(x)):
        return other(probes, module, forward, *args, **kwargs)
    one = x if probes.is_shared(x) else x.chunk(probes.count)[0]
    taken = probes.trust.check(
        ("vectors", module, x.dim()),
        lambda: _both_ways(module, forward, one),
        lambda: None,  # both ways may fail on vectors of our own
        lambda ways, _: ways is not None and near(*ways, output_tolerance(ways[1])),
    )
    if not taken:
        return other(probes, module, forward, x)
    x = probes.spread(x) if probes.is_shared(x) else x
    return _at_once(module, forward, x, {key: probes.values(tensor) for key, tensor in own_tensors(module).items()})


def _both_ways(module: nn.Module, forward: Forward, rows: Tensor) -> tuple[Tensor, Tensor] | None:
    """The rows at two points whose vectors are far apart: at once, and each by itself."""
    rows = torch.cat([rows, rows]) if len(rows) == 1 else rows  # so that one row's place is not all places
    with torch._C.DisableTorchFunction():  # not a use of the tuned tensors as they stand
        own = {key: tensor.detach() for key, tensor in own_tensors(module).items()}
        apart = {key: one + torch.linspace(0.5, 1.5, len(one)).to(one) for key, one in own.items()}
    expected = []
    for vectors in (own, apart):
        with holding(module, vectors):
            expected.append(forward(rows))
    both = {key: torch.stack([own[key], apart[key]]) for key in own}
    return _at_once(module, forward, torch.cat([rows, rows]), both), torch.cat(expected)


def _at_once(module: nn.Module, forward: Forward, x: Tensor, vectors: Mapping[str, Tensor]) -> Tensor:
    """A module's forward over the rows of several probes, probe-major, with their vectors [probes, width]."""
    with holding(module, {key: tensor[:, None] for key, tensor in vectors.items()}):
        y: Tensor = forward(x.reshape(len(next(iter(vectors.values()))), -1, x.shape[-1]))
    return y.view(x.shape)
