"""Calibrated zero-shot of choices: each one's score less the score that it gets after a prompt that says nothing."""

import json

import pytest
import torch
from torch import tensor

from noback import RunConfig, evaluating
from noback.calibration import calibrated, calibrated_accuracy, content_free
from noback.folder import RunFolder
from noback.run import Run, drawn_data
from noback.tasks import load_spec
from noback.training import resume, train
from tests.conftest import rows_of, write_rows

NONE = float("-inf")
PICK = 'name = "pick"\nprompt = "{text} so"\nchoices = ["options"]\ncontinuation = "{choice:l}"\nlabel = "label"\n'
PICKED = [
    ("It rained.", ["We got wet.", "Great."], 0),
    ("The film was dull", ["We laughed for an hour.", "We left before the end of it.", "No."], 1),
    ("He lost his keys", ["The door stayed shut.", "Yes."], 0),
    ("The actors were charming", ["It sank.", "We stayed."], 1),
]
# The choice stands in another column of the row, which only the continuation shows; two choices of one row are right.
CLOZE = (
    'name = "cloze"\nprompt = "{passage}\\n-"\nchoices = ["names"]\ncontinuation = "{query:@name}"\nlabel = "answers"\n'
)
CLOZES = [
    ("Ann met Bob and Kim.", "@name was glad to see Bob.", ["Ann", "Kim", "Bob"], ["Ann", "Kim"]),
    ("The old dog barked at a cat.", "Nobody fed @name that day.", ["dog", "cat"], ["dog"]),
    ("Rome is far from Paris.", "They went to @name by train.", ["Rome", "Paris"], ["Paris"]),
]
WORDS = 'name = "verdict"\nprompt = "{text} It was"\n[words]\n0 = "a waste of time"\n1 = "great"\n'


@pytest.fixture
def run_of(tiny_causal_folder, tmp_path):
    """A run over the rows of a task, each set the same rows."""

    def made(task, rows, **options):
        (tmp_path / "task.toml").write_text(task)
        (tmp_path / "data").mkdir(exist_ok=True)
        for split in ("train", "validation", "test"):
            write_rows(tmp_path / "data" / f"{split}.jsonl", rows)
        config = RunConfig(
            model=str(tiny_causal_folder), task=str(tmp_path / "task.toml"), data=str(tmp_path / "data"), **options
        )
        run = Run(config, RunFolder("."))
        run.task.use(drawn_data(config))
        return run

    return made


def pick_rows():
    return [{"text": text, "options": options, "label": gold} for text, options, gold in PICKED]


def cloze_rows():
    return [dict(zip(("passage", "query", "names", "answers"), row, strict=True)) for row in CLOZES]


@torch.inference_mode()
def mean_log_probability(run, prompt, answer):
    """By hand: the model's own forward over one text, and the mean over the tokens after the prompt."""
    before, whole = (run.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, prompt + answer))
    opening = run.tokenizer("a")["input_ids"][:1]  # <s>
    chances = run.model(torch.tensor([[*opening, *whole]])).logits[0].log_softmax(dim=-1)
    first = len(opening) + len(before)
    each = [chances[at - 1, token] for at, token in enumerate([*opening, *whole]) if at >= first]
    return float(torch.stack(each).mean())


def by_hand(run, prompts, free, answers):
    """Two scorings, one subtracted from the other: a row of numbers for each example."""
    return [
        [mean_log_probability(run, prompt, one) - mean_log_probability(run, free, one) for one in each]
        for prompt, each in zip(prompts, answers, strict=True)
    ]


def in_batch_order(run, column, values):
    """Values of the rows, in the order in which a set is answered."""
    texts = [sentences[run.task.spec.sentences.index(column)] for sentences in run.task.sentences("test")]
    return [values[text] for text in texts]


def check(run, column, hand):
    """The calibrated scores are those by hand, and far from the plain ones; the answers, and their accuracy."""
    answers = evaluating.answers(run, "test")
    found = calibrated(answers.logits, content_free(run, "test"))
    for row, plain, expected in zip(found, answers.logits, in_batch_order(run, column, hand), strict=True):
        torch.testing.assert_close(row[: len(expected)], tensor(expected), atol=1e-5, rtol=0)
        assert (row[: len(expected)] - plain[: len(expected)]).abs().min() > 1  # the two are far apart
        assert row[len(expected) :].tolist() == [NONE] * (len(row) - len(expected))
    return found.argmax(dim=1).tolist(), calibrated_accuracy(run, *answers[:2])


@pytest.mark.parametrize("batch", [1, 3])
def test_choices_lose_what_they_get_after_a_content_free_prompt(batch, run_of):
    run = run_of(PICK, pick_rows(), batch=batch)
    prompts = [f"{text} so" for text, _, _ in PICKED]
    lower = [[f" {one[0].lower()}{one[1:]}" for one in options] for _, options, _ in PICKED]
    hand = by_hand(run, prompts, "N/A so", lower)
    answered, share = check(run, "text", {row[0]: scores for row, scores in zip(PICKED, hand, strict=True)})
    gold = in_batch_order(run, "text", {text: gold for text, _, gold in PICKED})
    assert share == pytest.approx(sum(map(int.__eq__, answered, gold)) / len(gold))


def test_a_choice_keeps_the_column_in_which_it_stands_and_any_right_one_counts(run_of):
    run = run_of(CLOZE, cloze_rows(), batch=2)
    filled = [[" " + query.replace("@name", name) for name in names] for _, query, names, _ in CLOZES]
    hand = by_hand(run, [f"{passage}\n-" for passage, *_ in CLOZES], "N/A\n-", filled)
    answered, share = check(run, "passage", {row[0]: scores for row, scores in zip(CLOZES, hand, strict=True)})
    right = in_batch_order(run, "passage", {row[0]: [row[2].index(name) for name in row[3]] for row in CLOZES})
    assert share == pytest.approx(sum(one in some for one, some in zip(answered, right, strict=True)) / len(right))


def test_label_words_of_several_tokens_need_one_prompt(run_of):
    texts = [row[0] for row in PICKED]
    run = run_of(WORDS, [{"text": text, "label": number % 2} for number, text in enumerate(texts)], batch=4)
    assert run.task.word_ids is None
    assert len(content_free(run, "test")) == 1
    hand = by_hand(run, [f"{text} It was" for text in texts], "N/A It was", [[" a waste of time", " great"]] * 4)
    check(run, "text", dict(zip(texts, hand, strict=True)))


def test_an_example_with_fewer_choices_is_never_answered_with_one_that_it_lacks():
    logits, free = tensor([[-3.0, -2.0, NONE], [-3.0, -2.0, -9.0]]), tensor([[-5.0, -1.0, NONE], [-3.0, -2.0, -12.0]])
    found = calibrated(logits, free)
    assert found.tolist() == [[2.0, -1.0, NONE], [0.0, 0.0, 3.0]]
    assert found.argmax(dim=1).tolist() == [0, 2]


def test_another_right_choice_than_before_is_right(run_of, monkeypatch):
    """Gold follows the answer where several are right; calibration may answer with another of them."""
    run = run_of(CLOZE, cloze_rows()[:1], batch=2)
    logits = tensor([[-1.0, -3.0, -4.0]])  # Ann, which is right, before
    for free, share in (([-3.0, -9.0, -1.0], 1.0), ([-3.0, -9.0, -99.0], 0.0)):  # Kim after, then Bob
        monkeypatch.setattr(run.engine, "score", lambda batch, points, free=free: [tensor([free])])
        assert calibrated_accuracy(run, logits, tensor([0])) == share


def test_written_answers_are_not_calibrated(run_of):
    task = 'name = "say"\nprompt = "{text}"\nlabel = "said"\nmax_new_tokens = 3\nmetric = "exact_match"\n'
    run = run_of(task, [{"text": text, "said": "yes"} for text, _, _ in PICKED])
    assert calibrated_accuracy(run, torch.zeros(4, 1), torch.zeros(4, dtype=torch.long)) is None


def test_a_run_over_choices_says_it_and_so_does_the_baseline(tiny_causal_folder, tmp_path, noback):
    data = write_rows(tmp_path / "copa.jsonl", rows_of(load_spec("copa")))
    options = ("--model", tiny_causal_folder, "--task", "copa", "--data", data, "--batch", 4)
    code, out, err = noback("train", *options, "--steps", 1, "--out", tmp_path / "run")
    assert code == 0, err
    assert "calibrated, zero-shot: " in out
    code, out, err = noback("baseline", "zero-shot", *options, "--json")
    assert code == 0, err
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (said,) = [line["calibrated"] for line in lines if line["kind"] == "zero_shot"]
    assert json.loads(out)["calibrated"] == said == lines[-1]["calibrated"]


def test_a_resumed_run_still_knows_it(tiny_causal_folder, tmp_path):
    from noback.training import Interrupted

    data = write_rows(tmp_path / "copa.jsonl", rows_of(load_spec("copa")))
    config = RunConfig(model=str(tiny_causal_folder), task="copa", data=str(data), steps=2, batch=4)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", stop=lambda: True)
    assert resume(tmp_path / "run").calibrated == train(config, tmp_path / "whole").calibrated is not None
