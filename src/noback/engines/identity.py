"""What a base model is beside its weights: its configuration and its tokenizer, recorded and compared.

The same weights answer otherwise under another activation, other heads or other tokens. A journal holds the
configuration itself, so that a difference can be named, and digests of the tokenizer's parts.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

from noback.adapters import stored_beside
from noback.engines.loading import Opened
from noback.errors import DamagedError
from noback.tensor_bytes import digest

_CONFIG, _TOKENIZER, _WRITING, _BUFFERS = "model_config", "tokenizer", "generation", "buffers"
# Entries of a configuration that change no forward: who wrote it, how it is stored, how it is trained and written with.
_IDLE = {
    "architectures", "auto_map", "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "dtype",
    "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "finetuning_task",
    "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing", "id2label", "initializer_factor",
    "initializer_range", "label2id", "length_penalty", "max_length", "min_length", "name_or_path",
    "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_labels", "num_return_sequences", "output_attentions",
    "output_hidden_states", "output_scores", "prefix", "problem_type", "remove_invalid_values", "repetition_penalty",
    "return_dict", "return_dict_in_generate", "suppress_tokens", "task_specific_params", "temperature",
    "tf_legacy_loss", "top_k", "top_p", "torch_dtype", "torchscript", "transformers_version", "transformers_weights",
    "typical_p", "use_bfloat16", "use_cache",
}  # fmt: skip
_DROPPED = ("dropout", "pdrop", "layerdrop")
_SPECIAL = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_STEPS = "steps"
_PARTS = {  # of a tokenizer's digests: how an error names what differs
    "vocabulary": "another vocabulary", "special": "other special tokens", "texts": "another way to cut texts",
    "chat": "another chat template", "merges": "other merges", _STEPS: "another normaliser or pre-tokenizer",
}  # fmt: skip
_SHOWN = 3  # differences that an error names
# Case, accents, digits, white space, punctuation and scripts: what a normaliser and a pre-tokenizer tell apart.
_TEXTS = (
    "", " ", "a", "A", " a", "a ", "  two  spaces", "tab\there", "line\nbreak\r\nand\n\nmore", "It was great.",
    "IT WAS TERRIBLE!", "MixedCase camelCase snake_case", "na\u00efve caf\u00e9", "cafe\u0301 a\u030a",
    "Stra\u00dfe \ufb01ne \u00bd \u00b2", "I'm you're don't", "\u201cquoted\u201d \u2018so\u2019 \u2014 \u2013 \u2026",
    "1234567890 3.14 1,000 1e-5", "x=1; y+=2 # {z} [w] <v> a/b\\c", "e-mail@host.org http://a.b/c?d=e",
    "\U0001f600\U0001f469\u200d\U0001f467 \u2764\ufe0f", "\u041f\u0440\u0438\u0432\u0435\u0442",
    "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5", "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
    "\u3053\u3093 \u30ab\u30bf", "\uc548\ub155", "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627",
    "\u0928\u092e\u0938\u094d\u0924\u0947", "\u00a0\u200b\u3000\ufeff", "\x00\x7f\ufffd",
    "<s> </s> <mask> [MASK] [CLS] <|endoftext|>",
)  # fmt: skip


def identity_of(opened: Opened, *, chat: bool, written: bool) -> dict[str, Any]:
    """What a journal's header says of a model beside its weights, as JSON holds it; for a model before its adapter.

    `chat`: prompts are messages. `written`: answers are written, so the settings of writing count too.
    """
    model, tokenizer, _, config = opened
    buffers = stored_beside(model)
    return {
        _CONFIG: _trimmed(config),
        _TOKENIZER: tokenizer_digests(tokenizer, chat=chat),
        **({_WRITING: _settings(model)} if written else {}),
        **({_BUFFERS: digest(buffers)} if buffers else {}),
    }


def tokenizer_digests(tokenizer: Any, *, chat: bool = False) -> dict[str, str]:
    """A digest of each part of a tokenizer that tokens depend on; `chat`: of its chat template too."""
    # A large vocabulary is some 400,000 objects in a moment, and none is garbage: looking for it would take seconds.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return {part: _digest(value) for part, value in _tokenizer_parts(tokenizer, chat=chat)}
    finally:
        if collecting:
            gc.enable()


def check_identity(name: str, recorded: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Refuse a model that is not the one of a journal's header; what an older journal does not hold is not compared."""
    for part in (_CONFIG, _TOKENIZER, _WRITING):
        if not isinstance(recorded.get(part, {}), Mapping):
            raise DamagedError(f"entry {part!r} of the journal's header is no table; expected what a run writes")
    if _CONFIG in recorded:
        _check_config(name, recorded[_CONFIG], present[_CONFIG])
    if _WRITING in recorded:
        _refuse(name, "generation_config.json", _differences(recorded[_WRITING], present.get(_WRITING, {})))
    if _TOKENIZER in recorded:
        _check_tokenizer(name, recorded[_TOKENIZER], present[_TOKENIZER])
    if _CONFIG in recorded and recorded.get(_BUFFERS) != present.get(_BUFFERS):
        raise DamagedError(
            f"the buffers that are stored with the weights of model {name!r} are others than the run was made with; "
            "put them back, or name the model it was made from with --model"
        )


def _check_config(name: str, recorded: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Compared as they were written, then as today's library reads them: a file that was saved anew may mean the same.

    Differences are told as the library reads them: what one of the files leaves out then has its value.
    """
    if dict(recorded) != dict(present):
        _refuse(name, "config.json", _differences(_meant(name, recorded), _meant(name, present)))


def _check_tokenizer(name: str, recorded: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """The parts that both have: how a tokenizer is stored is compared within one version of its library only."""
    for part in (part for part in present if part in recorded):
        if recorded[part] != present[part]:
            raise DamagedError(
                f"the tokenizer of model {name!r} has {_PARTS[part.split()[0]]} than the run was made with; put its "
                "files back, or name the model it was made from with --model"
            )


def _refuse(name: str, file: str, differences: list[str]) -> None:
    if differences:
        more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise DamagedError(
            f"{file} of model {name!r} is another than the run was made with: {'; '.join(differences[:_SHOWN])}{more}; "
            "put it back, or name the model it was made from with --model"
        )


def _differences(recorded: Mapping[str, Any], present: Mapping[str, Any], before: str = "") -> list[str]:
    """Each entry that differs, with both values; of tables within, the entries that differ in them."""
    found: list[str] = []
    for key in sorted({*recorded, *present}):
        then, now = recorded.get(key), present.get(key)
        if isinstance(then, Mapping) and isinstance(now, Mapping):
            found += _differences(then, now, f"{before}{key}.")
        elif then != now:
            found.append(f"{before}{key} is {_shown(now)}, then {_shown(then)}")
    return found


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)[:60]


def _trimmed(table: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without the entries that change no forward."""
    return {
        str(key): _trimmed(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if not (key in _IDLE or str(key).startswith("_") or any(part in str(key) for part in _DROPPED))
    }


def _meant(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with every default spelled out, as today's library reads it."""
    import transformers

    values = dict(table)
    try:
        read = transformers.AutoConfig.for_model(str(values.pop("model_type", "")), **values)
        return _trimmed(json.loads(json.dumps(read.to_dict(), default=str)))
    except Exception as error:  # noqa: BLE001 (a header can hold anything, and the library raises many kinds)
        raise DamagedError(
            f"config.json of model {name!r} is another than the run was made with, and one of them cannot be read: "
            f"{' '.join(str(error).split())[:200]}; name the model it was made from with --model"
        ) from None


def _settings(model: Any) -> dict[str, Any]:
    """How the model writes, where its files say other than usual; what noback sets itself is left out."""
    table = json.loads(json.dumps(model.generation_config.to_diff_dict(), default=str))
    ours = ("max_new_tokens", "max_length", "do_sample", "num_beams", "pad_token_id", "transformers_version")
    return {key: value for key, value in table.items() if key not in ours and not key.startswith("_")}


def _tokenizer_parts(tokenizer: Any, *, chat: bool) -> Iterator[tuple[str, Any]]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    stored = None if backend is None else json.loads(backend.to_str())
    yield "vocabulary", _vocabulary(tokenizer.get_vocab() if stored is None else stored["model"].get("vocab", {}))
    yield "special", _special_tokens(tokenizer)
    yield "texts", [_tokens(tokenizer, text) for text in _TEXTS]
    if chat:
        yield "chat", tokenizer.chat_template
    if stored is None:
        return
    yield "merges", _rules(stored["model"])
    # The texts above show most changes of these on any version; how they are stored differs from one to the next.
    steps = [stored.get(step) for step in ("normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens")]
    yield f"{_STEPS} {metadata.version('tokenizers')}", steps


def _vocabulary(tokens: Any) -> list[Any]:
    """The tokens in the order of their ids, and the ids; some tokenizers store a list of tokens and their scores."""
    if isinstance(tokens, list):
        return [[token for token, _ in tokens], len(tokens)]
    return [sorted(tokens, key=lambda token: (tokens[token], token)), sorted(tokens.values())]


def _special_tokens(tokenizer: Any) -> list[Any]:
    ids = [getattr(tokenizer, f"{kind}_token_id", None) for kind in _SPECIAL]
    added = [(number, token.content) for number, token in sorted(tokenizer.added_tokens_decoder.items())]
    return [ids, added, sorted(tokenizer.model_input_names)]


def _tokens(tokenizer: Any, text: str) -> list[list[int]] | None:
    """The ids of a text without and with special tokens; None where the tokenizer knows no token for it."""
    try:
        return [tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"] for special in (False, True)]
    except Exception:  # noqa: BLE001 (some have no unknown token, and their libraries raise their own kinds)
        return None


def _rules(model: Mapping[str, Any]) -> list[Any]:
    """Merges, scores and switches of a tokenizer's model; merges are written as a text or as a pair."""
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges") or ()]
    scores = model["vocab"] if isinstance(model.get("vocab"), list) else []
    switches = {key: value for key, value in model.items() if key not in ("merges", "vocab") and value}
    return [merges, scores, switches]


def _digest(value: Any) -> str:
    """BLAKE2b (128 bits) over a value as JSON."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).hexdigest()
