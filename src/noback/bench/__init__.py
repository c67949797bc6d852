"""The bench: one training step of noback beside the reference MeZO, two plain forwards and Adam, on one machine.

`noback.bench.benching.bench(BenchCase(...))` measures; what stands here needs no torch.
"""

from noback.bench.case import CONTENDERS, OPTIONAL, BenchCase
from noback.bench.shapes import SHAPES, Shape

__all__ = ["CONTENDERS", "OPTIONAL", "SHAPES", "BenchCase", "Shape"]
