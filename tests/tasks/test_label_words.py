"""Label words: how they are looked up, and which are refused."""

import pytest

from noback.errors import InputError
from noback.tasks.label_words import label_word_ids


def tokens_of(words, tokenizer):
    ids = label_word_ids({str(number): word for number, word in enumerate(words)}, tokenizer)
    return tokenizer.convert_ids_to_tokens(ids)


@pytest.mark.parametrize("word", ["great", "terrible", "No", "Maybe", "Description", "?", "!"])
def test_a_word_is_looked_up_after_a_space(word, tokenizer):
    assert tokens_of([word, "okay"], tokenizer)[0] == "Ġ" + word


@pytest.mark.parametrize("word", ["<mask>", "</s>", "[", ".", ",", "...", ".."])
def test_a_word_that_begins_with_a_bracket_or_a_stop_is_looked_up_as_written(word, tokenizer):
    assert tokens_of([word, "okay"], tokenizer)[0] == word


def test_tokens_come_in_the_order_of_the_labels(tokenizer):
    assert tokens_of(["great", "bad", "okay", "terrible"], tokenizer) == ["Ġgreat", "Ġbad", "Ġokay", "Ġterrible"]


@pytest.mark.parametrize(
    ("word", "tokens"),
    [("okayish", "'Ġokay' 'ish'"), ("great film", "'Ġgreat' 'Ġfilm'"), ("[x", "'[' 'x'")],
)
def test_a_word_of_several_tokens_is_refused_with_its_tokens(word, tokens, tokenizer):
    with pytest.raises(InputError) as caught:
        tokens_of(["terrible", word], tokenizer)
    assert f"label word {word!r} is 2 tokens for this tokenizer ({tokens})" in str(caught.value)


def test_a_refused_word_comes_with_what_to_do(tokenizer):
    with pytest.raises(InputError, match="a masked-LM task needs one token: choose another word"):
        tokens_of(["terrible", "okayish"], tokenizer)


def test_the_unknown_token_is_no_label_word(tokenizer):
    with pytest.raises(InputError, match="is the unknown token for this tokenizer"):
        tokens_of(["terrible", "<unk>"], tokenizer)


def test_two_words_of_one_token_are_refused(tokenizer):
    with pytest.raises(InputError, match="label words 'great' and 'great' are the same token"):
        tokens_of(["great", "terrible", "great"], tokenizer)


def test_words_that_differ_in_case_are_two_tokens(tokenizer):
    assert len(set(tokens_of(["no", "No"], tokenizer))) == 2
