"""A run from objects: the embedded model on the embedded reviews, a few steps, then its weights used."""

import tempfile
from pathlib import Path

import noback

config = noback.RunConfig(
    task="reviews",
    test_limit=100,
    steps=6,
    eval_every=3,
    batch=32,
    estimator=noback.TwoSided(eps=1e-3, directions=2),
    rule=noback.Sgd(lr=1e-5, schedule="linear"),
)

with tempfile.TemporaryDirectory() as folder:
    result = noback.train(config, Path(folder) / "run")
    print(f"{result.steps} steps, {result.forwards} forwards, a journal of {result.journal_bytes} bytes")

    run, step = noback.tuned_run(result.run, at="best")
    score, _ = noback.evaluate(run, split="validation")
    print(f"weights of step {step}: validation loss {score.loss:.3f} on {score.examples} examples")
    for chances in noback.predict(run, [("a lovely little film",), ("two hours I will not get back",)]):
        print({label: round(chance, 3) for label, chance in chances.items()})
