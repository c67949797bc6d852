"""What the ranks of one run have to agree on before they make moves together."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from noback.config import RunConfig
from noback.distributed import Group, World, group_size
from noback.engines import chosen_device
from noback.journal import Contents
from noback.json_text import json_text
from noback.run import Run, versions
from noback.tensor_bytes import digest

_WHO = {False: "ranks", True: "groups of ranks"}


def in_equal_groups(config: RunConfig, world: World, examples: int) -> RunConfig:
    """Have ranks that share examples score them in groups that are the same on 1, 2 and 4 ranks.

    A float32 product of fewer rows may round otherwise. On a GPU that is left so: there each group costs the noise of
    all weights once more. `examples`: of the training set.
    """
    device = chosen_device(config.device or (None if config.engine.needs_base else "cpu"))
    if not world.shares_examples or device.type != "cpu":
        return config
    size = group_size(min(config.batch, examples), world.sharers(config.estimator.forwards))
    return replace(config, engine=config.engine.in_groups(size))


def agree_to_begin(run: Run) -> None:
    """Refuse ranks that would not make the same moves."""
    world, config = run.world, run.config
    if world.size == 1:
        return
    world.agree("version of noback, or of a library that it stands on,", json_text({**versions(), "code": _code()}))
    world.agree("configuration", config.digest())
    world.agree("base model", json_text({"base": run.base, "start": run.start, **run.identity}))
    world.agree("task or other data", json_text({"data": run.task.digest(), "task": run.task.spec.table()}))
    if world.group is not None:  # sums of another order would differ in their last bits, and with them what is fast
        world.agree("device, or number of threads,", f"{run.device.type} {torch.get_num_threads()}")
        run.watcher.note(_told(run, world.group))
    if world.models > 1:
        run.watcher.note(f"{world.models} {_WHO[world.together > 1]} share each step by {world.divide}")


def header_of_first(run: Run, header: dict[str, Any]) -> dict[str, Any]:
    """Rank 0's header of a new journal, so that every rank's journal has the same bytes."""
    if run.world.size == 1:
        return header
    found: dict[str, Any] = json.loads(run.world.from_rank(0, json_text(header).encode()))
    return found


def agree_on_records(run: Run, contents: Contents) -> None:
    """Refuse ranks that would go on from other steps: a process may have written after its journal was copied."""
    if run.world.size > 1:
        counts = len(contents.steps), len(contents.evaluations), len(contents.eps_changes), contents.sealed
        run.world.agree("journal", str(counts))


def agree_on_weights(run: Run, step: int) -> None:
    """Refuse to go on where a rank's weights are not those of rank 0, or of the one that holds the same parts.

    A part that one rank alone holds has none to be compared with.
    """
    if run.world.size > 1:
        tensors, cut = run.weights.tensors, run.weights.division.cuts
        whole = {name: tensor for name, tensor in tensors.items() if name not in cut}
        parts = {name: tensor for name, tensor in tensors.items() if name in cut}
        run.world.agree(f"set of weights after step {step}", digest(whole) + run.readout_values.hex(), digest(parts))


def _told(run: Run, group: Group) -> str:
    """How much of a model this rank holds."""
    held = sum(tensor.nbytes for tensor in {id(one): one for one in run.model.parameters()}.values())
    return f"{group.size} ranks hold the model together, each {held / 1e6:,.1f} MB of it"


def _code() -> str:
    """A digest of the package's own source."""
    top = Path(__file__).parent
    found = hashlib.blake2b(digest_size=16)
    for path in sorted(top.rglob("*.py")):
        found.update(f"{path.relative_to(top)}\0".encode() + path.read_bytes())
    return found.hexdigest()
