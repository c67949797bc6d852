"""Snapshots that are harmed, renamed or of another run: one that is used is the very one that was written there."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import torch

from noback.snapshot import newest_snapshot, save_snapshot
from noback.weights import Weights

_STEPS = (2, 4, 6)


def fuzz_snapshots(folder: Path, seed: int, count: int) -> dict[str, int]:
    """Harm a folder of snapshots `count` times; how often each outcome was seen."""
    rng, outcomes = random.Random(seed), Counter[str]()
    digests, strangers = ([rng.randbytes(16) for _ in range(10)] for _ in range(2))
    for name, marks, shift in (("ours", digests, 0.0), ("theirs", strangers, 0.5)):
        for step in _STEPS:
            save_snapshot(folder / name, step, _weights(step + shift), marks)
    ours, theirs = ([(folder / name / _name(step)).read_bytes() for step in _STEPS] for name in ("ours", "theirs"))
    for number in range(count):
        _write(folder / "ours", dict(zip(_STEPS, ours, strict=True)))
        _harm(folder / "ours", ours + theirs, rng)
        said: list[str] = []
        found = newest_snapshot(folder / "ours", 9, digests, _weights(0).tensors, said.append)
        if found is None:
            outcomes["none is used"] += 1
            continue
        step, tensors = found
        assert Weights(tensors).digest() == _weights(step).digest(), f"snapshot {number} of seed {seed}: other weights"
        outcomes["the newest is used" if step == _STEPS[-1] else "an older one is used"] += 1
        assert step == _STEPS[-1] or said or not (folder / "ours" / _name(_STEPS[-1])).exists()
    return dict(outcomes)


def _weights(value: float) -> Weights:
    return Weights({"a": torch.full((3, 2), float(value)), "b": torch.full((4,), float(value), dtype=torch.bfloat16)})


def _name(step: int) -> str:
    return f"step-{step:07d}.safetensors"


def _write(folder: Path, files: dict[int, bytes]) -> None:
    for path in folder.iterdir():
        path.unlink()
    for step, data in files.items():
        (folder / _name(step)).write_bytes(data)


def _harm(folder: Path, files: list[bytes], rng: random.Random) -> None:
    for _ in range(rng.choice((1, 2, 3))):
        path = folder / _name(rng.choice(_STEPS))
        if not path.exists():
            continue
        data, choice = path.read_bytes(), rng.randrange(6)
        at = rng.randrange(max(len(data), 1))
        if choice == 0 and data:
            path.write_bytes(data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :])
        elif choice == 1:
            path.write_bytes(data[:at])
        elif choice == 2:
            path.write_bytes(data[:at] + rng.randbytes(rng.randrange(1, 40)) + data[at:])
        elif choice == 3:
            path.write_bytes(rng.choice(files))
        elif choice == 4:
            path.rename(folder / _name(rng.randrange(10)))
        else:
            path.unlink()
