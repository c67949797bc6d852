"""The usual flags of a run's configuration by name; apart from `flags.py`, which needs the whole configuration."""

from __future__ import annotations

# flag -> where it stands in the configuration; options of a kind that stand nowhere here get a flag in `flags.py`
FLAGS = {
    "--model": "model", "--task": "task", "--data": "data", "--columns": "columns",
    "--template": "template", "--words": "words", "--shots": "shots",
    "--demonstrations": "demonstrations",
    "--data-seed": "data_seed", "--test-limit": "test_limit", "--steps": "steps", "--batch": "batch",
    "--adapter": "adapter", "--objective": "objective", "--metric": "metric",
    "--estimator": "estimator", "--eps": "estimator.eps", "--directions": "estimator.directions",
    "--rule": "rule", "--lr": "rule.lr", "--schedule": "rule.schedule", "--weight-decay": "rule.weight_decay",
    "--noise": "noise", "--engine": "engine",
    "--dtype": "dtype", "--seed": "seed", "--quantise": "quantise", "--device": "device", "--eval-every": "eval_every",
    "--patience": "patience", "--balance": "balance",
}  # fmt: skip
