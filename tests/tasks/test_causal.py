"""Encoding for causal models: prompts, label words, candidates and their limits."""

import pytest
import tokenizers
import torch
import transformers

from noback.errors import InputError
from noback.tasks import Task
from noback.tasks.data import Example
from noback.tasks.spec import spec_of
from noback.tasks.task import with_columns
from noback.tasks.validation import CAUSAL

BOS, EOS = 0, 2


def spec(**entries):
    return spec_of({"name": "own", "prompt": "{text} It was", "max_length": 64, **entries}, "own.toml")


WORDS = {"0": "terrible", "1": "great"}


def task_of(tokenizer, *texts, limit=None, **entries):
    task = Task(spec(**{"words": WORDS, **entries}), tokenizer, limit)
    task.add("test", [Example((text,), index % 2) for index, text in enumerate(texts)])
    return task


def only_batch(task, name="test"):
    (batch,) = task.batches(name, 100)
    return batch


def shown(tokenizer, ids):
    return tokenizer.decode([token for token in ids if token != tokenizer.pad_token_id])


def test_a_prompt_opens_a_text_and_does_not_close_it(tokenizer):
    batch = only_batch(task_of(tokenizer, "A warm film."))
    assert shown(tokenizer, batch.inputs["input_ids"][0].tolist()) == "<s>A warm film. It was"


def test_label_words_are_read_at_the_last_token_of_each_prompt(tokenizer):
    batch = only_batch(task_of(tokenizer, "A warm film.", "Dull, dull, dull and far too long."))
    lengths = batch.inputs["attention_mask"].sum(dim=1)
    assert batch.mask_positions.tolist() == (lengths - 1).tolist()
    last = batch.inputs["input_ids"][torch.arange(2), batch.mask_positions]
    assert last.tolist() == [tokenizer.encode(" was", add_special_tokens=False)[0]] * 2


def test_label_words_follow_a_space(tokenizer):
    assert task_of(tokenizer).word_ids == [
        tokenizer.convert_tokens_to_ids("Ġterrible"),
        tokenizer.convert_tokens_to_ids("Ġgreat"),
    ]


def test_label_words_on_a_line_of_their_own_follow_no_space(tokenizer):
    task = task_of(tokenizer, prompt="{text}\nYes or No?\n", words={"0": "No", "1": "Yes"})
    assert task.word_ids == [tokenizer.convert_tokens_to_ids("No"), tokenizer.convert_tokens_to_ids("Yes")]


def test_a_long_prompt_loses_its_beginning_and_keeps_its_opening(tokenizer):
    task = task_of(tokenizer, "one two three four five six seven eight nine ten", limit=8)
    ids = only_batch(task).inputs["input_ids"][0].tolist()
    assert len(ids) == 8
    assert ids[0] == BOS
    assert shown(tokenizer, ids).endswith(" ten It was")
    assert "1 of 1 prompts were shortened" in task.notes[0]


def test_columns_of_the_prompt_can_have_other_names():
    renamed = with_columns(spec(words=WORDS), "review,stars")
    assert (renamed.prompt, renamed.sentences, renamed.label) == ("{review} It was", ("review",), "stars")


def test_the_table_of_a_task_gives_the_task_again():
    assert spec_of(spec(words=WORDS).table(), "again") == spec(words=WORDS)


def test_the_table_of_a_masked_task_has_no_entry_of_causal_ones(reviews_spec):
    assert set(reviews_spec.table()).isdisjoint(CAUSAL)


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ({"prompt": "{text} It was "}, "ends with a space"),
        ({"prompt": "It was"}, "shows no column"),
        ({"words": WORDS, "template": "*cls**sent_0**mask**sep+*"}, "has a prompt and 'template'"),
        ({"words": WORDS, "sentences": ["other"]}, "names the sentences other; its prompt names them"),
        ({"words": WORDS, "choices": ["a", "b"]}, "has label words and choices"),
        ({"words": WORDS, "continuation": "{choice}"}, "has a continuation and no choices"),
        ({"words": WORDS, "replace": {"nowhere": {"a": "b"}}}, "entry 'replace' of task 'own' has 'nowhere'"),
        ({"words": WORDS, "stop": ["\n"]}, "are for written ones"),
        ({"words": {"0": "great"}}, "has 1 label words; expected at least two"),
        ({}, "max_new_tokens of task 'own' is 0"),
        ({"max_new_tokens": 5}, "metric of task 'own' is 'accuracy'; expected one of token_f1, exact_match"),
        ({"max_new_tokens": 5, "metric": "token_f1", "stop": [""]}, "has an empty text in 'stop'"),
    ],
)
def test_an_unsound_causal_task_is_refused_with_a_sentence(entries, sentence):
    with pytest.raises(InputError) as caught:
        spec(**entries)
    assert sentence in str(caught.value)


def test_a_masked_task_with_an_entry_of_causal_ones_is_refused(reviews_spec):
    with pytest.raises(InputError, match="has the entry 'stop', which needs a prompt"):
        spec_of({**reviews_spec.table(), "stop": ["\n"]}, "own.toml")


def test_label_words_of_the_same_tokens_are_refused(tokenizer):
    with pytest.raises(InputError, match="two label words of task 'own' are the same tokens"):
        task_of(tokenizer, words={"0": "great", "1": "great"})


def test_an_answer_that_leaves_the_prompt_no_room_is_refused(tokenizer):
    with pytest.raises(InputError, match="leaves it no room in 1 tokens"):
        task_of(tokenizer, "A film.", limit=1)


def test_a_written_answer_that_is_too_long_is_cut_and_leaves_room_for_the_prompt(tokenizer):
    entries = {"prompt": "{text}", "words": {}, "max_new_tokens": 4, "metric": "token_f1"}
    task = Task(spec(**entries), tokenizer, 16)
    task.add("test", [Example(("one two three four five six seven eight nine ten",), 0, accepted=("no " * 50,))])
    batch = only_batch(task)
    assert int((batch.candidates.targets >= 0).sum()) == 8
    assert batch.inputs["input_ids"].shape[1] == 16 - 1  # the last token is only predicted
    assert "1 of 1 prompts were shortened" in task.notes[0]


def test_a_tokenizer_that_marks_the_beginning_of_a_text_gives_label_words_of_one_token():
    """Llama's first tokenizers put a mark before any text, so ` great` by itself would be two tokens."""
    vocabulary = {"<s>": 0, "<unk>": 1, "▁": 2, "▁It": 3, "▁great": 4, "▁terrible": 5, "▁was": 6, "a": 7, "▁a": 8}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split("▁", "merged_with_next")
    marking = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", unk_token="<unk>")
    assert marking.encode(" great", add_special_tokens=False) == [2, 4]
    assert task_of(marking).word_ids == [5, 4]
