"""A whole run on a GPU: SST-2, 512 examples per label, the embedded model, and the same loop in the reference MeZO.

    python benchmarks/whole.py --data FOLDER          SST-2 (train and dev files); prints one JSON object

The run is `noback train --readout words`, looks at the validation set and the journal included. The reference MeZO
takes fewer steps, each on the run's own batch, in the same process; what it would take for all of them is
its time a step times the steps.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch

import noback
from noback.bench.reference import ReferenceStep
from noback.run import Run, drawn_data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FOLDER", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--published", type=int, default=300, help="steps in the reference MeZO")
    arguments = parser.parse_args()
    config = noback.RunConfig(
        task="sst2", data=str(arguments.data), shots=512, steps=arguments.steps, batch=64, data_seed=13,
        rule=noback.Sgd(lr=1e-5), readout=None, device=arguments.device, dtype=arguments.dtype,
        eval_every=max(arguments.steps // 10, 1),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        result = noback.train(config, Path(folder) / "run")
        wall = time.monotonic() - began
    kept = ("zero_shot", "final", "best", "best_step", "steps", "seconds", "peak_memory_bytes", "final_weights")
    a_step = published_seconds(config, arguments.published)
    print(
        json.dumps(
            {
                "dtype": arguments.dtype, **{name: getattr(result, name, None) for name in kept},
                "wall_seconds": wall, "milliseconds_a_step": 1e3 * result.seconds / arguments.steps,
                "published_milliseconds_a_step": 1e3 * a_step, "published_steps": arguments.published,
                "times_as_fast": a_step * arguments.steps / result.seconds,
            }
        )
    )  # fmt: skip


def published_seconds(config: noback.RunConfig, steps: int) -> float:
    """Seconds a step of the reference MeZO on the run's model and batches, which are padded to their longest row."""
    run = Run(config)
    run.task.use(drawn_data(config))
    device, words = run.weights.device, torch.tensor(run.task.word_ids, device=run.weights.device)
    began = 0.0
    for step in range(-20, steps):  # the first twenty warm up
        if step == 0:
            wait(device)
            began = time.monotonic()
        batch = run.batch(max(step, 0)).to(device)

        def logits(batch=batch) -> torch.Tensor:
            hidden = run.model.roberta(**batch.inputs)[0]
            at_mask = hidden[torch.arange(len(hidden), device=device), batch.mask_positions]
            return run.model.lm_head(at_mask)[:, words].float()

        ReferenceStep(list(run.model.named_parameters()), logits, batch.gold, eps=config.eps, lr=1e-5)(step + 20)
    wait(device)
    return (time.monotonic() - began) / steps


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
