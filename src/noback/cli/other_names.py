"""Flags as other programs call them, and what each is called here."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import pairwise

from noback.errors import shown
from noback.options import suggestion

# What is typed here -> names of the same thing elsewhere.
_NAMES = {
    "--eps": "--epsilon --zo-eps --zero-order-eps --perturbation-scale",
    "--lr": "--learning-rate --learn-rate --step-size",
    "--batch": "--batch-size --bs --train-batch-size --per-device-train-batch-size",
    "--micro-batch": "--micro-batch-size --per-device-eval-batch-size --eval-batch-size",
    "--steps": "--max-steps --num-steps --n-steps --total-steps --train-steps --iterations --num-iterations --iters",
    "--out": "--output-dir --output --output-file --outdir --out-dir --save-dir --run-dir",
    "--model": "--model-name-or-path --model-name --model-path --base-model --pretrained --checkpoint-path",
    "--task": "--task-name",
    "--data": "--dataset --dataset-name --data-dir --data-path --data-file --train-file",
    "--columns": "--text-column --label-column --fields",
    "--shots": "--k --num-k --k-shot --kshot --few-shot --num-shots --n-shots --num-train",
    "--demonstrations": "--demos --num-demos --num-demonstrations --icl",
    "--data-seed": "--train-set-seed --split-seed --sample-seed",
    "--test-limit": "--num-eval --num-test --test-size --max-eval-samples --limit",
    "--seed": "--random-seed",
    "--eval-every": "--eval-steps --eval-interval --evaluation-steps --logging-steps",
    "--patience": "--early-stopping --early-stopping-patience",
    "--metric": "--metric-for-best-model",
    "--schedule": "--lr-schedule --lr-scheduler --lr-scheduler-type --scheduler",
    "--weight-decay": "--wd --l2",
    "--rule": "--optimizer --optim",
    "--rule momentum": "--momentum",
    "--objective": "--loss --loss-function --criterion",
    "--directions": "--num-directions --num-perturbations --n-spsa --q --zero-order-sample",
    "--adapter": "--peft --tuning",
    "--adapter lora": "--lora --use-lora --apply-lora",
    "--adapter lora --set adapter.rank=N": "--lora-rank --lora-r --rank --r",
    "--adapter lora --set adapter.alpha=X": "--lora-alpha",
    "--adapter lora --set adapter.targets=NAMES": "--lora-targets --target-modules --lora-target-modules",
    "--adapter prefix": "--prefix --prefix-tuning",
    "--adapter prefix --set adapter.tokens=N": "--num-prefix --num-virtual-tokens --prefix-length",
    "--adapter head": "--head --classification-head",
    "--dtype": "--precision --torch-dtype --type",
    "--dtype bfloat16": "--bf16 --fp16 --half --load-bfloat16 --load-float16",
    "--quantise": "--quantize --quantization",
    "--quantise int8": "--load-in-8bit --load-int8",
    "--quantise int4": "--load-in-4bit",
    "--device": "--gpu --cuda --no-cuda --use-cuda --cpu",
    "--config": "--config-file --cfg",
    "--log-to": "--report-to --logger --wandb --tensorboard",
    "--trust": "--trust-remote-code",
    "--at": "--checkpoint --step --weights",
    "--merge": "--merge-adapter --merge-and-unload",
}
_ELSEWHERE = {other: ours for ours, others in _NAMES.items() for other in others.split()}

_EPOCHS = ("--epochs", "--epoch", "--num-epochs", "--n-epochs", "--max-epochs", "--num-train-epochs")
_USUAL_BATCH = 64
# What has another way than a flag.
_OTHERWISE = {
    "--resume": "a stopped run goes on with `noback resume RUN`",
    "--resume-from-checkpoint": "a stopped run goes on with `noback resume RUN`",
    "--linear-probe": "it is a command: `noback baseline probe`",
    "--linear-probing": "it is a command: `noback baseline probe`",
    "--zero-shot": "it is a command: `noback baseline zero-shot`",
    "--save-steps": "it is not needed: the journal rebuilds the weights of every step",
    "--max-length": "it is `max_length` in the task's TOML file (`noback tasks TASK` shows it)",
    "--max-seq-length": "it is `max_length` in the task's TOML file (`noback tasks TASK` shows it)",
    "--max-new-tokens": "it is `max_new_tokens` in the task's TOML file (`noback tasks TASK` shows it)",
}


def refusal(words: Sequence[str], known: Collection[str], command: str) -> str | None:
    """What to say to the first flag among some words that a command does not know; None where it knows them all."""
    for word in words[: words.index("--")] if "--" in words else words:
        flag = word.partition("=")[0]
        is_flag = re.fullmatch(r"--[A-Za-z][\w-]*", flag) and " " not in word  # else a text, as argparse has it
        if is_flag and flag not in known and (_ours(flag, known) or not any(each.startswith(flag) for each in known)):
            return f"{_answer(flag, words, known, command)} (`{command} --help` shows its options)"
    return None


def _answer(flag: str, words: Sequence[str], known: Collection[str], command: str) -> str:
    usual = flag.lower().replace("_", "-")
    if usual in _EPOCHS and "--steps" in known:
        return f"{flag} is not an option: noback counts steps, not epochs: {_steps_of_an_epoch(words)}"
    if usual in _OTHERWISE:
        return f"{flag} is not an option: {_OTHERWISE[usual]}"
    ours = _ours(flag, known)
    if ours is not None:
        return f"{flag} is not an option: here it is {ours}"
    return f"{shown(flag)} is not an option of `{command}`{suggestion(usual, known)}"


def _ours(flag: str, known: Collection[str]) -> str | None:
    """What a flag is called here, where the command has it."""
    usual = flag.lower().replace("_", "-")
    ours = usual if usual in known else _ELSEWHERE.get(usual, "")
    return ours if ours.partition(" ")[0] in known else None


def _steps_of_an_epoch(words: Sequence[str]) -> str:
    """How many steps an epoch is, with the batch of the command line where it names one."""
    after = dict(pairwise(words)) | dict(word.split("=", 1) for word in words if "=" in word)
    text = after.get("--batch", "")
    batch = int(text) if re.fullmatch(r"[1-9][0-9]{0,8}", text) else _USUAL_BATCH
    return (
        f"an epoch is the number of training examples divided by --batch ({batch}), "
        f"so 1,000 examples are --steps {-(-1000 // batch)} an epoch"
    )
