"""The causal tasks that ship, with the prompts, candidates and answers of the paper's table."""

import json

import pytest

from noback.errors import InputError
from noback.tasks import Task, load_spec, task_names
from noback.tasks.data import read_data
from noback.tasks.spec import spec_of

ROWS = {
    "sst2-causal": {"sentence": "a warm film .", "label": 1},
    "reviews-causal": {"sentence": "A warm film.", "label": 1},
    "rte-causal": {"sentence1": "A man sleeps.", "sentence2": "A man rests.", "label": "entailment"},
    "sst5-causal": {"sentence": "a warm film .", "label": 3},
    "trec-causal": {"sentence": "Who made this ?", "label": 3},
    "snli-causal": {"premise": "It rains.", "hypothesis": "it is wet", "label": "neutral"},
    "cb": {"premise": "It rains.", "hypothesis": "it is wet", "label": "neutral"},
    "boolq": {"passage": "Ice floats.", "question": "does ice float", "label": True},
    "wsc": {"text": "Ann met Bo as she left.", "span1_text": "Ann", "span2_text": "she", "label": 1},
    "wic": {"word": "bank", "sentence1": "By the bank.", "sentence2": "At the bank.", "label": False},
    "multirc": {"paragraph": "Bo ran.", "question": "Who ran?", "answer": "Bo", "label": 1},
    "copa": {
        "premise": "It rained.", "question": "effect", "choice1": "I got wet.", "choice2": "The sun shone.",
        "label": 0,
    },
    "record": {
        "passage": "Ann met Bo.\n@highlight\nThey spoke.", "query": "@placeholder met Bo", "entities": ["Ann", "Bo"],
        "answers": ["Ann"],
    },
    "squad": {"title": "Ice", "context": "Ice floats.", "question": "What floats?", "answers": {"text": ["Ice", "it"]}},
    "drop": {"passage": "Two cats, a dog.", "question": "How many cats?", "answers_spans": {"spans": ["2"]}},
    "instructions": {"prompt": "Say hello.", "completion": "Hello!"},
}  # fmt: skip

# task -> its row's prompt, its candidates, the right one
PUBLISHED = {
    "sst2-causal": ("a warm film . It was", (" terrible", " great"), " great"),
    "reviews-causal": ("A warm film. It was", (" terrible", " great"), " great"),
    "rte-causal": ('A man sleeps.\nDoes this mean that "A man rests." is true? Yes or No?\n', ("Yes", "No"), "Yes"),
    "sst5-causal": ("a warm film . It was", (" terrible", " bad", " okay", " good", " great"), " good"),
    "trec-causal": (
        "Question: Who made this ?\nType of answer:",
        (" Description", " Entity", " Expression", " Human", " Location", " Number"), " Human",
    ),
    "snli-causal": (
        'Suppose It rains. Can we infer that "it is wet"? Yes, No, or Maybe? Answer:',
        (" No", " Yes", " Maybe"), " Maybe",
    ),
    "cb": (
        'Suppose It rains. Can we infer that "it is wet"? Yes, No, or Maybe?\n', ("Yes", "No", "Maybe"), "Maybe",
    ),
    "boolq": ("Ice floats. does ice float?\n", ("No", "Yes"), "Yes"),
    "wsc": (
        'Ann met Bo as she left.\nIn the previous sentence, does the pronoun "she" refer to Ann? Yes or No?\n',
        ("No", "Yes"), "Yes",
    ),
    "wic": (
        'Does the word "bank" have the same meaning in these two sentences? Yes, No?\nBy the bank.\nAt the bank.\n',
        ("No", "Yes"), "No",
    ),
    "multirc": (
        'Bo ran.\nQuestion: Who ran?\nI found this answer "Bo". Is that correct? Yes or No?\n', ("No", "Yes"), "Yes",
    ),
    "copa": ("It rained so", (" I got wet.", " the sun shone."), " I got wet."),
    "record": ("Ann met Bo.\n- They spoke.\n-", (" Ann met Bo", " Bo met Bo"), " Ann met Bo"),
    "squad": ("Title: Ice\nContext: Ice floats.\nQuestion: What floats?\nAnswer:", (" Ice\n",), " Ice\n"),
    "drop": ("Passage: Two cats, a dog.\nQuestion: How many cats?\nAnswer:", (" 2\n",), " 2\n"),
    "instructions": ("Say hello.", (" Hello!</s>",), " Hello!</s>"),
}  # fmt: skip


def examples_of(name, folder, row=None):
    path = folder / "data.jsonl"
    path.write_text(json.dumps(row or ROWS[name]) + "\n")
    (examples,) = read_data(str(path), load_spec(name)).values()
    return examples


def test_every_causal_task_of_the_paper_ships_and_those_of_noback():
    assert {name for name in task_names() if load_spec(name).is_causal} == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_row_gives_the_published_prompt_and_candidates(name, tokenizer, tmp_path):
    task = Task(load_spec(name), tokenizer)
    task.add("test", examples_of(name, tmp_path))
    (batch,) = task.batches("test", 1)
    prompt, candidates, right = PUBLISHED[name]
    opened = "<s>" + prompt
    assert tokenizer.decode(task.questions("test")[0].ids) == opened
    if task.word_ids is not None:
        assert tuple(tokenizer.decode([token]) for token in task.word_ids) == candidates
    else:
        ends = [[token for token in row if token >= 0] for row in batch.candidates.targets.tolist()]
        assert tuple(map(tokenizer.decode, ends)) == candidates
    assert candidates[int(batch.gold[0])] == right


@pytest.mark.parametrize(("name", "metric"), [("squad", "token_f1"), ("drop", "token_f1"), ("copa", "accuracy")])
def test_a_metric_is_the_published_one(name, metric):
    assert load_spec(name).metric == metric


@pytest.mark.parametrize("name", ["squad", "drop"])
def test_a_written_answer_is_at_most_fifty_tokens_and_one_line(name):
    assert (load_spec(name).max_new_tokens, load_spec(name).stop) == (50, ("\n",))


def test_a_cause_is_asked_with_because(tmp_path, tokenizer):
    task = Task(load_spec("copa"), tokenizer)
    task.add("test", examples_of("copa", tmp_path, {**ROWS["copa"], "question": "cause"}))
    assert tokenizer.decode(task.questions("test")[0].ids) == "<s>It rained because"


def test_a_label_may_be_the_text_of_the_right_choice(tmp_path):
    (example,) = examples_of("copa", tmp_path, {**ROWS["copa"], "label": "The sun shone."})
    assert example.gold == 1


def test_several_choices_may_be_right_and_a_choice_is_listed_once(tmp_path):
    row = {**ROWS["record"], "entities": ["Bo", "Ann", "Ann", "Anna"], "answers": ["Ann", "Anna"]}
    (example,) = examples_of("record", tmp_path, row)
    assert (example.choices, example.gold, example.right) == (("Bo", "Ann", "Anna"), 1, (1, 2))


@pytest.mark.parametrize(
    ("name", "changed", "sentence"),
    [
        ("copa", {"label": 2}, "has the label '2'; expected the text of a choice, or its number from 0 to 1"),
        ("copa", {"choice2": " "}, "expected at least two, none of them empty"),
        ("record", {"entities": ["Ann"]}, "expected at least two, none of them empty"),
        ("record", {"answers": ["Cy"]}, "has the label \"['Cy']\""),
        ("squad", {"answers": {"text": []}}, "has no text in its column 'answers.text'"),
        ("squad", {"answers": {}}, "has no column 'answers.text'"),
        ("instructions", {"completion": "  "}, "has no text in its column 'completion'"),
    ],
)
def test_a_row_without_an_answer_is_refused_with_its_line(name, changed, sentence, tmp_path):
    with pytest.raises(InputError) as caught:
        examples_of(name, tmp_path, {**ROWS[name], **changed})
    assert sentence in str(caught.value)


def test_label_words_of_several_tokens_become_continuations(tokenizer, tmp_path):
    table = {**load_spec("sst2-causal").table(), "words": {"0": "terrible", "1": "really quite great"}}
    task = Task(spec_of(table, "own"), tokenizer)
    task.add("test", examples_of("sst2-causal", tmp_path))
    (batch,) = task.batches("test", 1)
    assert task.word_ids is None
    assert batch.candidates.counts == (2,)
    assert [int((row >= 0).sum()) for row in batch.candidates.targets] == [1, 3]
