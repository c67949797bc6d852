"""Digests of the noise on the weights of a large shape, to compare one machine's with another's.

python benchmarks/noise.py --device cpu --out here.json
python benchmarks/noise.py --device cuda --compare here.json      exit code 1 where a digest differs

The weights are made of noise too, so both machines begin with the same bits. `perturbed` covers every tensor at two
points, whole and cut in rows; `advanced` every tensor after three moves.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import transformers

from noback.bench.machine import machine
from noback.bench.shapes import SHAPES
from noback.directions import FAMILIES
from noback.directions.cpu_backend import tensor_array
from noback.values import Move, Term
from noback.weights import DTYPES, Weights

START = Move((Term(11, 0.02),))
POINTS = [Move((Term(0x123456789ABCDEF0, 1e-3),)), Move((Term(0x123456789ABCDEF0, -1e-3),))]
MOVES = [Move((Term(5, 1e-3), Term(6, -2e-4)), 0.99), Move((Term(7, -1e-2),)), Move((Term(8, 1e-4),))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="roberta-large")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare", type=Path)
    arguments = parser.parse_args()
    shapes = tensors_of(arguments.shape)
    kinds = [(noise, dtype) for noise in FAMILIES for dtype in DTYPES]
    with ThreadPoolExecutor(1 if arguments.device == "cpu" else len(kinds)) as threads:  # hashing leaves a GPU idle
        made = threads.map(lambda kind: digests(shapes, kind[0], DTYPES[kind[1]], arguments.device), kinds)
        found = {" ".join(kind): digest for kind, digest in zip(kinds, made, strict=True)}
    table = {
        "machine": machine(torch.device(arguments.device)),
        "shape": arguments.shape,
        "device": arguments.device,
        "digests": found,
    }
    text = json.dumps(table, indent=2) + "\n"
    print(text)
    if arguments.out:
        arguments.out.write_text(text)
    if arguments.compare:
        other = json.loads(arguments.compare.read_text())
        print("equal" if other["digests"] == found else "DIFFERENT", "to", arguments.compare)
        sys.exit(other["digests"] != found)


def tensors_of(shape: str) -> dict[str, tuple[int, ...]]:
    """The tensors of a shape by name."""
    config = transformers.AutoConfig.for_model(SHAPES[shape].kind, **SHAPES[shape].numbers)
    with torch.device("meta"):
        model = transformers.AutoModelForMaskedLM.from_config(config)
    return {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}


def digests(shapes: dict[str, tuple[int, ...]], noise: str, dtype: torch.dtype, device: str) -> dict[str, str]:
    tensors = {name: torch.zeros(shape, dtype=dtype, device=device) for name, shape in shapes.items()}
    weights = Weights(tensors, noise)
    weights.advance([START])
    total = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        whole = weights.perturbed(name, POINTS)
        rows = torch.arange(len(tensors[name]) // 3, len(tensors[name]), 7, device=device)
        cut = weights.perturbed(name, POINTS, rows)
        assert torch.equal(cut, whole[:, rows]), name
        total.update(tensor_array(whole.cpu().contiguous().view(-1)).data)
    weights.advance(MOVES)
    return {"perturbed": total.hexdigest(), "advanced": weights.digest()}


if __name__ == "__main__":
    main()
