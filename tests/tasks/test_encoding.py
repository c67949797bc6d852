"""Encoding: the exact tokens of a prompt, what is cut where it does not fit, and the padding of a batch."""

import copy
import dataclasses

import pytest
import torch

from noback.errors import InputError
from noback.tasks import Task, load_spec
from noback.tasks.data import Example
from noback.tasks.encoding import Encoder
from noback.tasks.spec import spec_of

CLS, PAD, SEP, MASK = 0, 1, 2, 4
IT_WAS, STOP = [550, 324], [18]
WARM = "a warm and funny film"
WARM_IDS = [69, 6396, 291, 1271, 387]
LONG = "and " * 300


def encoded(spec, tokenizer, *sentences, model_limit=None, gold=1):
    return Encoder(spec, tokenizer, model_limit).encode([Example(sentences, gold)])[0]


def pair_spec(template="*cls**sent-_0*?*mask*,*+sentl_1**sep+*", **more):
    table = {
        "name": "pair",
        "template": template,
        "words": {"0": "No", "1": "Yes"},
        "sentences": ["first", "second"],
    }
    return spec_of({**table, **more}, "pair.toml")


def test_the_sst2_prompt_has_these_tokens(tokenizer):
    prompt = encoded(load_spec("sst2"), tokenizer, WARM)
    assert prompt.ids == [CLS, *WARM_IDS, *IT_WAS, MASK, *STOP, SEP]


def test_the_mask_position_is_where_the_mask_stands(tokenizer):
    prompt = encoded(load_spec("sst2"), tokenizer, WARM)
    assert prompt.mask_position == len([CLS, *WARM_IDS, *IT_WAS])


def test_the_mask_position_is_the_templates_even_where_a_sentence_says_mask(tokenizer):
    prompt = encoded(load_spec("sst2"), tokenizer, "a <mask> film")
    assert prompt.mask_position == len(prompt.ids) - len([MASK, *STOP, SEP])


def test_a_two_sentence_prompt_changes_both_sentences_as_its_template_says(tokenizer):
    prompt = encoded(load_spec("rte"), tokenizer, "A man sleeps.", "He is awake")

    def tokens(text):
        return tokenizer.encode(text, add_special_tokens=False)

    first, second = tokens("A man sleeps"), tokens(" he is awake")
    assert prompt.ids == [CLS, *first, *tokens("?"), MASK, *tokens(","), *second, SEP]


def test_the_mask_may_stand_first(tokenizer):
    prompt = encoded(load_spec("trec"), tokenizer, WARM)
    assert (prompt.ids[1], prompt.mask_position) == (MASK, 1)


def test_an_empty_sentence_leaves_the_rest_of_the_prompt(tokenizer):
    assert encoded(load_spec("sst2"), tokenizer, "").ids == [CLS, *IT_WAS, MASK, *STOP, SEP]


@pytest.mark.parametrize("gold", [0, 1])
def test_the_gold_label_goes_along(gold, tokenizer):
    assert encoded(load_spec("sst2"), tokenizer, WARM, gold=gold).gold == gold


# What does not fit


@pytest.mark.parametrize("task", ["sst2", "trec", "rte", "qqp", "mnli"])
@pytest.mark.parametrize("model_limit", [None, 32, 64])
def test_a_mask_is_never_cut_off(task, model_limit, tokenizer):
    spec = load_spec(task)
    prompt = encoded(spec, tokenizer, *[LONG] * len(spec.sentences), model_limit=model_limit)
    assert prompt.ids[prompt.mask_position] == MASK


def test_a_long_sentence_is_cut_at_its_end(tokenizer):
    prompt = encoded(load_spec("sst2"), tokenizer, WARM, model_limit=8)
    assert prompt.ids == [CLS, *WARM_IDS[:2], *IT_WAS, MASK, *STOP, SEP]


@pytest.mark.parametrize("limit", [7, 20, 127, 128])
def test_a_long_prompt_fills_the_limit(limit, tokenizer):
    assert len(encoded(load_spec("sst2"), tokenizer, LONG, model_limit=limit).ids) == limit


def test_the_tasks_limit_holds_where_the_models_is_wider(tokenizer):
    assert len(encoded(load_spec("sst2"), tokenizer, LONG, model_limit=512).ids) == 128


def test_of_two_sentences_the_longer_is_cut(tokenizer):
    spec = pair_spec("*cls**sent_0**mask**sent_1**sep+*", max_length=20)
    prompt = encoded(spec, tokenizer, LONG, WARM)
    assert prompt.ids[prompt.mask_position + 1 :] == [*WARM_IDS, SEP]


def test_two_long_sentences_are_cut_to_like_length(tokenizer):
    spec = pair_spec("*cls**sent_0**mask**sent_1**sep+*", max_length=23)
    prompt = encoded(spec, tokenizer, LONG, LONG)
    assert prompt.mask_position - 1 == len(prompt.ids) - prompt.mask_position - 2


@pytest.mark.parametrize("limit", [1, 3, 110])
def test_a_sentence_keeps_to_its_own_limit(limit, tokenizer, reviews_spec):
    spec = dataclasses.replace(reviews_spec, sentence_limits=(limit,))
    assert encoded(spec, tokenizer, LONG).mask_position == 1 + limit + len(IT_WAS)


def test_a_limit_on_the_first_sentence_leaves_the_second_alone(tokenizer):
    spec = pair_spec("*cls**sent_0**mask**sent_1**sep+*", sentence_limits=[2])
    prompt = encoded(spec, tokenizer, WARM, WARM)
    assert prompt.ids == [CLS, *WARM_IDS[:2], MASK, *WARM_IDS, SEP]


def test_a_prompt_that_fits_is_not_called_shortened(tokenizer):
    assert not encoded(load_spec("sst2"), tokenizer, WARM).shortened


def test_a_prompt_cut_to_fit_is_called_shortened(tokenizer):
    assert encoded(load_spec("sst2"), tokenizer, LONG).shortened


def test_a_sentence_cut_to_its_own_limit_is_called_shortened(tokenizer, reviews_spec):
    spec = dataclasses.replace(reviews_spec, sentence_limits=(3,))
    assert encoded(spec, tokenizer, WARM).shortened


def test_shortened_prompts_are_counted_in_a_note(tokenizer, reviews_spec):
    task = Task(dataclasses.replace(reviews_spec, max_length=9), tokenizer)
    task.add("test", [Example((WARM,), 1), Example(("dull",), 0)])
    assert task.notes == ("test: 1 of 2 prompts were shortened to fit",)


@pytest.mark.parametrize("max_length", [1, 5, 6])
def test_a_prompt_that_cannot_fit_is_an_error(max_length, tokenizer, reviews_spec):
    spec = dataclasses.replace(reviews_spec, max_length=max_length)
    with pytest.raises(InputError, match=f"prompt of task 'small' cannot fit: .* in {max_length} tokens"):
        encoded(spec, tokenizer, WARM)


def test_a_model_too_short_for_the_prompt_is_an_error(tokenizer, reviews_spec):
    with pytest.raises(InputError, match=r"cannot fit: .* in 5 tokens"):
        encoded(reviews_spec, tokenizer, WARM, model_limit=5)


@pytest.mark.parametrize("kind", ["mask", "pad", "cls", "sep"])
def test_a_tokenizer_without_a_special_token_is_refused_by_its_name(kind, tokenizer, reviews_spec):
    lacking = copy.deepcopy(tokenizer)
    setattr(lacking, f"{kind}_token", None)
    with pytest.raises(InputError, match=f"the model's tokenizer has no {kind} token"):
        Encoder(reviews_spec, lacking)


# Batches


@pytest.fixture
def batch(tokenizer, reviews_spec):
    encoder = Encoder(reviews_spec, tokenizer)
    return encoder.batch(encoder.encode([Example((WARM,), 1), Example(("dull",), 0)]))


def test_a_batch_is_padded_to_its_longest_example(batch):
    assert batch.inputs["input_ids"].shape == (2, len([CLS, *WARM_IDS, *IT_WAS, MASK, *STOP, SEP]))


def test_padding_is_the_pad_token_after_the_prompt(batch):
    ids = batch.inputs["input_ids"][1].tolist()
    assert ids[ids.index(SEP) + 1 :] == [PAD] * (len(ids) - ids.index(SEP) - 1)


def test_attention_covers_the_prompt_and_not_the_padding(batch):
    assert torch.equal(batch.inputs["attention_mask"], (batch.inputs["input_ids"] != PAD).long())


def test_a_batch_holds_the_mask_position_of_each_row(batch):
    assert batch.inputs["input_ids"][torch.arange(2), batch.mask_positions].tolist() == [MASK, MASK]


def test_a_batch_holds_the_gold_labels_in_order(batch):
    assert batch.gold.tolist() == [1, 0]


def test_a_batch_has_no_segments_where_the_tokenizer_names_none(batch):
    assert "token_type_ids" not in batch.inputs


@pytest.fixture
def segmenting(tokenizer):
    """The tokenizer as one of BERT's kind, which tells a prompt's segments apart."""
    other = copy.deepcopy(tokenizer)
    other.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return other


def segments_of(template, tokenizer):
    encoder = Encoder(pair_spec(template), tokenizer)
    rows = encoder.encode([Example(("dull", "clever"), 0), Example((WARM, WARM), 0)])
    return encoder.batch(rows).inputs["token_type_ids"]


def test_segments_are_zero_for_a_prompt_with_one_separator(segmenting):
    assert not segments_of("*cls**sent_0**mask**sent_1**sep+*", segmenting).any()


def test_a_new_segment_begins_after_a_separator(segmenting):
    segments = segments_of("*cls**sent_0**sep+**mask**sent_1**sep+*", segmenting)[1]
    first, second = len([CLS, *WARM_IDS, SEP]), len([MASK, *WARM_IDS, SEP])
    assert segments.tolist() == [0] * first + [1] * second


def test_there_are_two_segments_at_most(segmenting):
    assert segments_of("*cls**sent_0**sep+**mask**sep+**sent_1**sep+*", segmenting).max() == 1


@pytest.mark.parametrize("text", ["half \ud83d", "caf\udce9"])
def test_a_text_to_answer_that_is_no_utf8_is_refused(text, small_task):
    with pytest.raises(InputError, match=r"a text to answer is .* which is no UTF-8"):
        small_task.prompts([text])
