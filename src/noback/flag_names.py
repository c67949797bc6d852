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
    "--directions-per": "directions_per",
    "--rule": "rule", "--lr": "rule.lr", "--schedule": "rule.schedule", "--weight-decay": "rule.weight_decay",
    "--noise": "noise", "--noise-rank": "noise.rank", "--noise-period": "noise.period", "--readout": "readout",
    "--readout-decay": "readout.decay", "--readout-examples": "readout.examples", "--readout-refits": "readout.refits",
    "--engine": "engine", "--dtype": "dtype", "--seed": "seed", "--quantise": "quantise", "--device": "device",
    "--eval-every": "eval_every", "--patience": "patience", "--balance": "balance",
}  # fmt: skip

# What is typed here -> names of the same thing elsewhere.
OTHER_NAMES = {
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
ELSEWHERE = {other: ours for ours, others in OTHER_NAMES.items() for other in others.split()}
EPOCHS = ("--epochs", "--epoch", "--num-epochs", "--n-epochs", "--max-epochs", "--num-train-epochs")
