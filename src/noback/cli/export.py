"""noback export: a run's weights as an ordinary Hugging Face folder."""

from __future__ import annotations

import argparse

from noback.cli.commands import add_json, add_run
from noback.cli.replay import add_streaming, write

HELP = "write a run's weights as an ordinary Hugging Face folder"
DESCRIPTION = """
Write a run's weights and tokenizer as an ordinary Hugging Face folder, for AutoModelForMaskedLM.from_pretrained (or
AutoModelForCausalLM). A LoRA run gives a PEFT adapter (PeftModel.from_pretrained), or the whole model with --merge; a
prefix run gives prefix.safetensors, each tensor under its name in the model.

  noback export runs/reviews-001 tuned-model
  noback export runs/reviews-002 adapter
  noback export runs/reviews-002 tuned-model --merge
  noback export runs/reviews-001 tuned-model --stream
"""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    add_run(parser)
    parser.add_argument("target", metavar="DIR", help="the new folder")
    parser.add_argument("--merge", action="store_true", help="LoRA: the whole model with the adapter merged into it")
    add_streaming(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Export and say where."""
    write(arguments, snapshots=True)
