"""The flags of a run's configuration by name; apart from `flags.py`, which needs the whole configuration."""

from __future__ import annotations

# flag -> where it stands in the configuration
FLAGS = {
    "--model": "model", "--task": "task", "--data": "data", "--columns": "columns", "--shots": "shots",
    "--demonstrations": "demonstrations",
    "--data-seed": "data_seed", "--test-limit": "test_limit", "--steps": "steps", "--batch": "batch", "--lr": "rule.lr",
    "--schedule": "rule.schedule", "--weight-decay": "rule.weight_decay", "--eps": "estimator.eps",
    "--directions": "estimator.directions", "--noise": "noise", "--dtype": "dtype", "--seed": "seed",
    "--objective": "objective", "--adapter": "adapter", "--quantise": "quantise", "--device": "device",
    "--products": "products",
    "--eval-every": "eval_every", "--probes-per-pass": "probes_per_pass", "--micro-batch": "micro_batch",
    "--share": "share",
}  # fmt: skip
