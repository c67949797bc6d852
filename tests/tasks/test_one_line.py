"""Label words on one line: what is read, what is written back, and what is refused."""

import pytest

from noback.errors import InputError
from noback.tasks.one_line import words_of, words_text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0=terrible,1=great", {"0": "terrible", "1": "great"}),
        (" 1 = great , 0 = terrible ", {"1": "great", "0": "terrible"}),
        ('0=" terrible",1= great', {"0": "terrible", "1": "great"}),
        ('"New York, NY"=york,"a=b"=x', {"New York, NY": "york", "a=b": "x"}),
        ('"say ""hi"""=hello,other="a, b"', {'say "hi"': "hello", "other": "a, b"}),
        ("größe=groß,小=small", {"größe": "groß", "小": "small"}),
    ],
)
def test_a_line_is_read_in_its_order_and_comes_back(text, words):
    assert list(words_of(text).items()) == list(words.items())
    assert words_of(words_text(text)) == words
    assert words_text(words) == words_text(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "cannot be read from character 1 on; expected LABEL=WORD with commas between"),
        ("0", "cannot be read from character 1 on"),
        ("0=a,", "cannot be read from character 5 on"),
        ("0=a 1=b", "cannot be read from character 1 on"),
        ('{"0": "a"}', "cannot be read from character 1 on"),
        ("0=,1=b", "no word for the label '0'"),
        ("=a,1=b", "no label for the word 'a'"),
        ("0=a,0=b", "name the label '0' twice"),
        ("0=a,1= a", "give the labels '0' and '1' the same word 'a'"),
        ("0=...,1=b", "have ... for the label '0'; put a word of yours in its place"),
        ("0=a\x1b[31m,1=b", "with a control character"),
        ("0=a\n,1=b\tc", "with a control character"),
        ({"0": 5}, "hold 5 as a word; expected a text"),
        ({1.5: "a"}, "hold 1.5 as a label; expected a text"),
    ],
)
def test_a_line_that_cannot_serve_is_refused_with_a_sentence(text, sentence):
    with pytest.raises(InputError) as caught:
        words_of(text)
    assert sentence in str(caught.value)


def test_a_long_line_is_read_in_time_that_grows_with_it():
    words = {f"label {number}": f"word{number}" for number in range(20000)}
    assert words_of(words_text(words)) == words
    with pytest.raises(InputError):
        words_of(" " * 200000)
