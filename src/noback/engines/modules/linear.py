"""Linear layers: a product for each probe with its own weight; a frozen weight is one shared product."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noback.directions.backend import Products, why_no_triton
from noback.engines.modules.kinds import Forward, is_plain
from noback.engines.modules.probes import Probes


def is_linear(module: nn.Module) -> bool:
    """Whether a module is torch's linear."""
    return is_plain(module, nn.Linear)


def linear(probes: Probes, module: nn.Linear, _forward: Forward, x: Tensor) -> Tensor:
    """The product, or of a decoder the output rows that are asked for."""
    rows, x = probes.output_rows.get(module), probes.spread(x)
    if rows is not None and probes.given is not None:
        probes.given.append(x)
    bias = None if module.bias is None else probes.bias(module.bias, rows)
    thin = probes.products(module.weight, rows)
    if thin is not None:
        with torch._C.DisableTorchFunction():
            weight = module.weight if rows is None else module.weight[rows]
            return thin_branch(x, weight.t(), Products(thin.of_columns, thin.of_rows), bias)
    if probes.tensors.moves(module.weight):
        return products(probes, x, probes.perturbed(module.weight, rows), bias)
    y = F.linear(x, module.weight if rows is None else module.weight[rows])
    if bias is not None:
        y.view(probes.count, -1, y.shape[-1]).add_(bias)
    return y


def thin_branch(x: Tensor, weight: Tensor, products: Products, bias: Tensor | None) -> Tensor:
    """X [probes x rows, ..., in] by weight [in, out], one for all probes, plus each probe's thin products and bias.

    `products`: of the inputs and of the outputs, [probes, products, in] and [probes, products, out].
    """
    parts = x.reshape(len(products.of_rows), -1, x.shape[-1])
    if parts.is_cuda and products.of_rows.shape[1] == 1 and why_no_triton() is None:
        from noback.engines.cuda.branch_triton import branch
    else:
        branch = _branch
    y = branch(parts, *products, bias)
    y = y.view(-1, y.shape[-1]).addmm_(parts.flatten(0, 1), weight)
    return y.view(*x.shape[:-1], y.shape[-1])


def _branch(x: Tensor, of_inputs: Tensor, of_outputs: Tensor, bias: Tensor | None) -> Tensor:
    """X [probes, rows, in] by each probe's thin products, plus bias [probes, 1, out]: [probes, rows, out]."""
    of_inputs, of_outputs = of_inputs.to(x.dtype), of_outputs.to(x.dtype)
    if of_inputs.shape[1] == 1:
        inner = (x * of_inputs).sum(-1, keepdim=True)
        return inner * of_outputs if bias is None else torch.addcmul(bias, inner, of_outputs)
    inner = torch.bmm(x, of_inputs.transpose(1, 2))
    return torch.bmm(inner, of_outputs) if bias is None else torch.baddbmm(bias, inner, of_outputs)


def products(probes: Probes, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """X [probes x rows, ..., in] by weight [probes, out, in] plus bias [probes, 1, out].

    A product a probe, its bias fused, is faster than one batched product and an addition.
    """
    with torch._C.DisableTorchFunction():
        parts = x.reshape(probes.count, -1, x.shape[-1])
        y = x.new_empty((*parts.shape[:2], weight.shape[1]))
        for index, part in enumerate(parts):
            if bias is None:
                torch.mm(part, weight[index].t(), out=y[index])
            else:
                torch.addmm(bias[index, 0], part, weight[index].t(), out=y[index])
        return y.view(*x.shape[:-1], y.shape[-1])
