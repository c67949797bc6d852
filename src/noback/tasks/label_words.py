"""Label words: the one token that stands for each label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noback.errors import InputError

_AS_WRITTEN = ("<", "[", ".", ",")


def label_word_ids(words: Mapping[str, str], tokenizer: Any) -> list[int]:
    """The token of each label's word, looked up with a space before it; one token or an error that names them."""
    ids: dict[int, str] = {}
    for word in words.values():
        text = word if word.startswith(_AS_WRITTEN) else " " + word
        found = tokenizer.encode(text, add_special_tokens=False)
        if len(found) != 1 or found[0] == tokenizer.unk_token_id:
            tokens = " ".join(repr(token) for token in tokenizer.convert_ids_to_tokens(found))
            count = f"{len(found)} tokens" if len(found) != 1 else "the unknown token"
            if not found:
                raise InputError(f"the tokenizer finds no token in {word!r}; are the model's tokenizer files there?")
            raise InputError(
                f"label word {word!r} is {count} for this tokenizer ({tokens}); "
                "a masked-LM task needs one token: choose another word"
            )
        if found[0] in ids:
            raise InputError(f"label words {ids[found[0]]!r} and {word!r} are the same token; choose another word")
        ids[found[0]] = word
    return list(ids)
