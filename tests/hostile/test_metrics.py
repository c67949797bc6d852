"""Points 2, 6 and 9: lines of metrics that someone changed are judged, or left out, and never stop a report."""

import json
import random
from collections import Counter

from noback.folder import RunFolder
from noback.health import on_the_way
from noback.journal import read_journal
from noback.metrics import metrics_in
from noback.verdict import verdict

JUNK = [
    None, True, 0, -1, 10**400, -(10**30), 1e308, -1e308, 5e-324, float("nan"), float("inf"), "x", "", [], {}, [[]],
    [1, "a"], [None], {"a": [1]}, [[1, 2], [3, 4]], [[0, 0], [0, 0]], [1.0] * 16, [0] * 8, 2**63,
]  # fmt: skip


def changed(value, rng):
    """The value with something in it that was taken out, doubled, or something else."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        left = {name: one for name, one in value.items() if name != key}
        return left if rng.random() < 0.15 else {**left, key: changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.6:
        at = rng.randrange(len(value))
        return value * 2 if rng.random() < 0.1 else [*value[:at], changed(value[at], rng), *value[at + 1 :]]
    return rng.choice(JUNK)


def test_a_thousand_changed_metrics_are_judged_without_a_traceback(master):
    rng, words = random.Random(3), Counter()
    contents, path = read_journal(master / "journal"), RunFolder(master).metrics
    steps = contents.steps
    contents.steps = [steps[place % len(steps)] for place in range(6 * len(steps))]  # enough to be judged
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for _ in range(1000):
        harmed = [changed(line, rng) if rng.random() < 0.2 else line for line in lines]
        found = metrics_in("\n".join(map(json.dumps, harmed)))
        words[verdict(contents, found).word] += 1
        on_the_way(contents, found)
    assert len(words) > 1
    assert words.total() == 1000
