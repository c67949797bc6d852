"""An objective of one's own: a false alarm costs five times a miss.

noback train --objective examples.own_objective:cost --set objective.smooth=true
"""

import tempfile
from pathlib import Path

import torch

import noback


def cost(label_logits: torch.Tensor, gold: torch.Tensor) -> torch.Tensor:
    """The expected cost of a batch: label logits [examples, labels] and gold [examples] become one number."""
    chances = torch.softmax(label_logits.double(), dim=1)
    prices = torch.tensor([[0.0, 5.0], [1.0, 0.0]], dtype=torch.float64)  # gold label (row), answer (column)
    return (chances * prices[gold]).sum(dim=1).mean()


def main() -> None:
    config = noback.RunConfig(
        steps=4, batch=16, test_limit=40, eval_every=2, objective=noback.Function(cost, smooth=True)
    )
    with tempfile.TemporaryDirectory() as folder:
        result = noback.train(config, Path(folder) / "run")
        print(f"{result.objective}: {result.zero_slope_share:.0%} of the slopes are zero; {result.verdict}")


if __name__ == "__main__":
    main()
