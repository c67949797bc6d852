"""What a results file says about where its figures come from."""

from __future__ import annotations

import torch

from noback.bench.machine import machine as described


def machine() -> dict:
    return {name: value for name, value in described(torch.device("cpu")).items() if value is not None}
