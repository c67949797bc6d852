"""The sweeps by a CPU, with as many threads as torch uses. Tensors elsewhere are fetched and brought back."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from noback.directions.backend import Part, Products
from noback.directions.families import Noise
from noback.directions.philox import is_ranked, part_size
from noback.values import Move, Term

try:
    from noback.directions import philox_numba as sweeps
except ImportError:  # slow, the same bits
    from noback.directions import philox as sweeps  # type: ignore[no-redef]


class CpuBackend:
    """Sweeps over tensors, which are taken where they are at the moment of a call."""

    small: Sequence[str] = ()  # a sweep costs no launch
    alone: Collection[str] = ()

    def __init__(self, parts: Mapping[str, Part], noise: Noise) -> None:
        self._parts, self._noise = parts, noise

    def order(self, points: Sequence[Move]) -> Hashable:
        """All of them: nothing is brought anywhere."""
        return tuple(points)

    def prepare(self, names: Sequence[str]) -> None:
        """Nothing is needed ahead."""

    def perturb(self, name: str, points: Sequence[Move], rows: Tensor | None = None, only: int | None = None) -> Tensor:
        """The tensor (or its chosen rows) at each point, or at one of them: [points, *shape]."""
        first, height = self._parts[name].place.first_row, len(self._parts[name].tensor)
        if rows is not None and not (first <= rows[0] and rows[-1] < first + height):
            raise IndexError(f"rows {int(rows[0])} to {int(rows[-1])} of {name!r}, which has {height}")
        return self.perturb_together([name], points if only is None else [points[only]], rows)[name]

    def perturb_together(
        self, names: Sequence[str], points: Sequence[Move], rows: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The tensors at each point, shared out to the threads in one go: [points, *shape]."""
        found, arrays = {}, []
        for name in names:
            part = self._parts[name]
            shape = (len(points), len(part.tensor) if rows is None else len(rows))
            found[name] = torch.empty((*shape, *part.tensor.shape[1:]), dtype=part.tensor.dtype, device="cpu")
            matrix = part.matrix.cpu()
            out = found[name].view(*shape, matrix.shape[1])
            arrays.append((tensor_array(out), tensor_array(matrix), part.place))
        chosen = None if rows is None else rows.cpu().numpy()
        sweeps.perturb(arrays, self._noise, points, chosen, threads=torch.get_num_threads())
        return {name: out.to(self._parts[name].tensor.device) for name, out in found.items()}

    def look_up(self, name: str, points: Sequence[Move], ids: Tensor, only: int | None = None) -> Tensor:
        """Rows `ids` of the tensor; only the rows that are used are perturbed: [*ids, *row]."""
        count = len(points) if only is None else 1
        rows, places = torch.unique(ids, return_inverse=True)
        products = self.products(name, points, rows, only)
        if products is not None:
            return self._with_products(name, ids, places.reshape(count, -1), products)
        table = self.perturb(name, points, rows, only)
        offset = torch.arange(count, device=ids.device)[:, None] * len(rows)
        return F.embedding((places.reshape(count, -1) + offset).reshape(places.shape), table.flatten(0, 1))

    def products(
        self, name: str, points: Sequence[Move], rows: Tensor | None = None, only: int | None = None
    ) -> Products | None:
        """What the points add to the tensor, or to its chosen rows; None where each element has its own noise."""
        part, some = self._parts[name], points if only is None else [points[only]]
        if not (is_ranked(self._noise, part.place) and any(point.terms for point in some)):
            return None
        seeds, index, sizes = _terms(self._noise, tuple(some))
        first, device = part.place.first_row, part.tensor.device
        lines = np.arange(first, first + len(part.tensor)) if rows is None else rows.cpu().numpy()
        signs = sweeps.factors(self._noise, part.place, seeds, lines, part.matrix.shape[1])
        of_rows, of_columns = (torch.from_numpy(of_seeds)[index] for of_seeds in signs)
        of_rows *= sizes
        return Products(*(one.flatten(1, 2).to(device) for one in (of_rows, of_columns)))

    def _with_products(self, name: str, ids: Tensor, places: Tensor, products: Products) -> Tensor:
        """Rows `ids` of the tensor plus their products, to the bit as `perturb` has them; `places`: of their signs."""
        part = self._parts[name]
        found = F.embedding(ids.reshape(places.shape) - part.place.first_row, part.matrix).float()
        for index in range(products.of_rows.shape[1]):  # in their order: each is added by itself
            sizes = products.of_rows[:, index].gather(1, places)
            found.addcmul_(sizes[..., None], products.of_columns[:, index, None])
        return found.to(part.tensor.dtype).view(*ids.shape, *part.tensor.shape[1:])

    def advance(self, moves: Sequence[Move], coefficients: Tensor | None = None) -> None:
        """Apply the moves to every tensor in place; fetched tensors go one by one."""
        if coefficients is not None:
            (move,) = moves
            pairs = zip(move.terms, coefficients.tolist(), strict=True)
            moves = [Move(tuple(Term(term.seed, coefficient) for term, coefficient in pairs), move.decay)]
        if all(move.decay == 1.0 for move in moves):
            self._advance(list(self._parts.values()), moves)
            return
        self._advance([part for part in self._parts.values() if part.decayed], moves)
        self._advance([part for part in self._parts.values() if not part.decayed], [Move(move.terms) for move in moves])

    def _advance(self, parts: Sequence[Part], moves: Sequence[Move]) -> None:
        fetches = any(part.tensor.is_cuda for part in parts)
        for some in ([part] for part in parts) if fetches else (parts,):
            matrices = [part.matrix.cpu() for part in some]  # of a tensor on the CPU: its own memory
            arrays = [(tensor_array(matrix), part.place) for matrix, part in zip(matrices, some, strict=True)]
            sweeps.advance(arrays, self._noise, moves, threads=torch.get_num_threads())
            if fetches:
                some[0].matrix.copy_(matrices[0])


@lru_cache(maxsize=4)  # the same for every tensor of a step
def _terms(noise: Noise, points: tuple[Move, ...]) -> tuple[list[int], Tensor, Tensor]:
    """The seeds of some points, which of them each term has [points, terms], and how far its products go."""
    seeds = list(dict.fromkeys(term.seed for point in points for term in point.terms))
    places = {seed: place for place, seed in enumerate(seeds)}
    index = np.zeros((len(points), max(len(point.terms) for point in points)), dtype=np.int64)
    sizes = np.zeros((*index.shape, 1, 1), dtype=np.float32)  # 0 where a point has fewer terms than others
    for place, point in enumerate(points):
        for turn, term in enumerate(point.terms):
            index[place, turn], sizes[place, turn] = places[term.seed], part_size(noise, term.coefficient)
    return seeds, torch.from_numpy(index), torch.from_numpy(sizes)


def tensor_array(tensor: Tensor) -> NDArray[Any]:
    """The tensor's memory as NumPy sees it; bfloat16 as its bits."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()
