"""Embeddings: only the rows that the batch uses are perturbed."""

from __future__ import annotations

from torch import Tensor, nn

from noback.engines.modules.kinds import Forward, is_plain
from noback.engines.modules.probes import Probes


def is_embedding(module: nn.Module) -> bool:
    """Whether a module is torch's embedding, and does not rescale its rows."""
    return is_plain(module, nn.Embedding) and module.max_norm is None


def embedding(probes: Probes, module: nn.Embedding, _forward: Forward, ids: Tensor) -> Tensor:
    """[probes x rows, tokens, width]; ids that all rows share, such as positions, are looked up once a probe."""
    if probes.is_shared(ids):
        once = ids.reshape(1, -1).expand(probes.count, -1)
        return probes.tensors.looked_up(module.weight, once, probes.only).repeat_interleave(probes.examples, dim=0)
    probes.check_split(ids)
    return probes.tensors.looked_up(module.weight, ids, probes.only)
