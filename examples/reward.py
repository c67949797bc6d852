"""A reward: the model writes on from an opening, and one short sentence is what is wanted.

noback train --model mini-causal --task TASK.toml --data DIR --objective reward:examples.reward:one_short_sentence
"""

import json
import tempfile
from pathlib import Path

import noback

TASK = """
name = "openings"
prompt = "{opening}"
label = ""            # no answer is right: a reward judges what is written
max_new_tokens = 8
"""
SUBJECTS = ["film", "story", "book", "song", "game", "museum", "garden", "river", "train", "teacher", "dog", "city"]
OPENINGS = {
    "train": [f"{start} {subject}" for start in ("The", "My", "This old") for subject in SUBJECTS],
    "validation": [f"Our {subject}" for subject in SUBJECTS],
    "test": [f"That {subject}" for subject in SUBJECTS],
}


def one_short_sentence(_row: dict[str, str], text: str, _right: tuple[str, ...]) -> float:
    """Of one text, higher is better: 1 for a sentence of three words or more that ends, less 0.05 a word of it."""
    sentence, full_stop, _ = text.partition(".")
    words = len(sentence.split())
    return float(full_stop == "." and words >= 3) - 0.05 * words


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "openings.toml").write_text(TASK)
        (place / "data").mkdir()
        for split, openings in OPENINGS.items():
            rows = "".join(json.dumps({"opening": opening}) + "\n" for opening in openings)
            (place / "data" / f"{split}.jsonl").write_text(rows)
        config = noback.RunConfig(
            model="mini-causal", task=str(place / "openings.toml"), data=str(place / "data"), steps=12, batch=8,
            eval_every=4, estimator=noback.TwoSided(eps=1e-2, directions=8), rule=noback.Sgd(lr=3e-4),
            objective=noback.Reward(one_short_sentence),
        )  # fmt: skip
        result = noback.train(config, place / "run")
        print(f"mean reward on the test set: {result.zero_shot_score:.2f} before, {result.best_score:.2f} after")
        for step in ("base", "best"):
            run, _ = noback.tuned_run(place / "run", step)
            opening = OPENINGS["test"][0]
            print(f"{step}: {opening} ... {noback.generate(run, [opening])[0]}")


if __name__ == "__main__":
    main()
