"""A base is more than its weights: a configuration or a tokenizer that answers otherwise is refused by its name."""

import json
import shutil

import pytest
import torch
import transformers

from noback import Prefix, RunConfig, Sgd, TwoSided, train
from noback.adapters import stored_beside
from noback.cli.main import main
from noback.engines import check_identity, identity_of, open_model
from noback.engines.identity import tokenizer_digests
from noback.errors import DamagedError
from noback.journal import read_journal
from noback.tuned import open_run
from tests.conftest import NEGATIVE, POSITIVE, tiny_model, write_rows

COMMANDS = {
    "resume": (),
    "evaluate": (),
    "predict": ("a warm film",),
    "export": ("OUT",),
    "replay": ("OUT",),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny_folder, tiny_causal_folder):
    """A finished run of each kind of model, in a folder with the model that it was made from."""
    root = tmp_path_factory.mktemp("runs")
    rows = [{"sentence": text, "label": gold} for gold, texts in ((1, POSITIVE), (0, NEGATIVE)) for text in texts]
    (root / "data").mkdir()
    for split in ("train", "validation", "test"):
        write_rows(root / "data" / f"{split}.jsonl", rows)
    for kind, folder, task in (("masked", tiny_folder, "reviews"), ("causal", tiny_causal_folder, "reviews-causal")):
        model = shutil.copytree(folder, root / kind / "model")
        train(
            RunConfig(
                model=str(model), task=task, data=str(root / "data"), steps=2, batch=4, eval_every=2,
                rule=Sgd(lr=1e-2), estimator=TwoSided(eps=1e-2),
            ),
            root / kind / "run",
        )  # fmt: skip
    return root


@pytest.fixture
def changed(runs):
    """Changes a file of a run's model in place, and puts every file back when the test ends."""
    kept = {path: path.read_bytes() for path in runs.glob("*/model/*")}

    def change(kind, file, edit):
        path = runs / kind / "model" / file
        table = json.loads(path.read_text())
        edit(table)
        path.write_text(json.dumps(table))
        return runs / kind / "run"

    yield change
    for path in runs.glob("*/model/*"):
        path.unlink()
    for path, data in kept.items():
        path.write_bytes(data)


def updated(**values):
    return lambda table: table.update(values)


CONFIGS = [
    ("masked", updated(hidden_act="relu"), "hidden_act is 'relu', then 'gelu'"),
    ("masked", updated(num_attention_heads=4), "num_attention_heads is 4, then 2"),
    ("masked", updated(pad_token_id=0), "pad_token_id is 0, then 1"),
    ("masked", updated(layer_norm_eps=0.1), "layer_norm_eps is 0.1, then 1e-12"),
    ("masked", updated(is_decoder=True), "is_decoder is True, then False"),
    (
        "causal",
        lambda table: table["rope_parameters"].update(rope_theta=10.0),
        "rope_parameters.rope_theta is 10.0, then 10000.0",
    ),
    ("causal", updated(rms_norm_eps=0.5), "rms_norm_eps is 0.5, then 1e-06"),
]


def swap(table):
    vocabulary = table["model"]["vocab"]
    one, other = "Ġgreat", "Ġterrible"
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]


def exchange_merges(table):
    merges = table["model"]["merges"]
    merges[-1], merges[-2] = merges[-2], merges[-1]


TOKENIZERS = [
    (swap, "another vocabulary"),
    (updated(normalizer={"type": "Lowercase"}), "another way to cut texts"),
    (
        updated(normalizer={"type": "Replace", "pattern": {"String": "marvellous"}, "content": "dreadful"}),
        "another normaliser or pre-tokenizer",
    ),
    (exchange_merges, "other merges"),
]


def refused(capsys, command, run, out):
    arguments = [str(out) if word == "OUT" else word for word in COMMANDS[command]]
    code = main([command, str(run), *arguments])
    err = capsys.readouterr().err
    assert code == 2
    assert err.count("\n") == 1
    assert not out.exists()
    return err


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("kind", "edit", "said"), CONFIGS, ids=[said.split()[0] for *_, said in CONFIGS])
def test_a_changed_configuration_is_refused_with_its_key_and_both_values(
    command, kind, edit, said, changed, capsys, tmp_path
):
    sentence = refused(capsys, command, changed(kind, "config.json", edit), tmp_path / "out")
    assert said in sentence
    assert "--model" in sentence


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("edit", "said"), TOKENIZERS, ids=[said for _, said in TOKENIZERS])
def test_a_changed_tokenizer_is_refused_with_the_part_that_differs(command, edit, said, changed, capsys, tmp_path):
    sentence = refused(capsys, command, changed("masked", "tokenizer.json", edit), tmp_path / "out")
    assert f"has {said} than the run was made with" in sentence


def test_another_special_token_is_refused(changed):
    run = changed("masked", "tokenizer_config.json", updated(pad_token="<unk>"))
    with pytest.raises(DamagedError, match="other special tokens"):
        open_run(run)


ALIKE = {
    "dropout": updated(hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.3, classifier_dropout=0.2),
    "version": updated(transformers_version="4.30.0", architectures=["RobertaModel", "RobertaForMaskedLM"]),
    "dtype": updated(dtype="bfloat16"),
    "defaults": lambda table: [table.pop(key) for key in ("hidden_act", "is_decoder") if key in table],
}


@pytest.mark.parametrize("edit", ALIKE.values(), ids=ALIKE)
def test_a_configuration_that_means_the_same_is_accepted(edit, changed):
    open_run(changed("masked", "config.json", edit))


def test_the_order_of_a_configuration_does_not_count(runs, changed):
    path = runs / "masked" / "model" / "config.json"
    entries = list(json.loads(path.read_text()).items())
    path.write_text(json.dumps(dict(reversed(entries))))
    open_run(runs / "masked" / "run")


def test_an_older_form_of_an_entry_is_accepted_where_it_means_the_same(changed):
    def older(table):
        table["rope_theta"] = table.pop("rope_parameters")["rope_theta"]

    open_run(changed("causal", "config.json", older))


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_a_model_that_was_saved_anew_is_accepted(kind, runs, tmp_path):
    model, anew = runs / kind / "model", tmp_path / "anew"
    auto = transformers.AutoModelForMaskedLM if kind == "masked" else transformers.AutoModelForCausalLM
    auto.from_pretrained(model).save_pretrained(anew)
    transformers.AutoTokenizer.from_pretrained(model).save_pretrained(anew)
    open_run(runs / kind / "run", model=str(anew))


def test_a_header_names_what_differs_and_stays_small(runs):
    header = read_journal(runs / "causal" / "run" / "journal").header
    assert header["model_config"]["rms_norm_eps"] == 1e-06
    assert set(header["tokenizer"]) > {"vocabulary", "special", "texts", "merges"}
    assert "generation" not in header  # no answer is written
    assert len(json.dumps([header["model_config"], header["tokenizer"]])) < 1000


def test_an_older_journal_without_them_is_compared_by_its_weights_alone(runs):
    run, _ = open_run(runs / "masked" / "run")
    check_identity("m", {"base": run.base}, run.identity)


def test_a_run_of_a_prefix_is_compared_too(runs, changed, tmp_path):
    model = runs / "causal" / "model"
    config = RunConfig(
        model=str(model), task="reviews-causal", data=str(runs / "data"), steps=1, batch=4, adapter=Prefix(tokens=2)
    )
    train(config, tmp_path / "run")
    changed("causal", "config.json", updated(hidden_act="gelu"))
    with pytest.raises(DamagedError, match="hidden_act is 'gelu', then 'silu'"):
        open_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("recorded", "said"),
    [
        ({"model_config": 5}, "'model_config' of the journal's header is no table"),
        ({"tokenizer": []}, "'tokenizer' of the journal's header is no table"),
        ({"model_config": {"model_type": "nothing"}}, "one of them cannot be read"),
        ({"model_config": {"model_type": "roberta", "vocab_size": [7]}}, "one of them cannot be read"),
    ],
)
def test_a_header_that_holds_anything_else_is_refused_in_a_sentence(recorded, said, runs):
    run, _ = open_run(runs / "masked" / "run")
    with pytest.raises(DamagedError, match=said):
        check_identity("m", recorded, run.identity)


def test_many_differences_are_counted():
    then = {"model_config": {"model_type": "roberta"}}
    now = {"model_config": dict.fromkeys(("hidden_size", "vocab_size", "num_hidden_layers", "type_vocab_size"), 7)}
    now["model_config"]["model_type"] = "roberta"
    with pytest.raises(DamagedError, match=r"hidden_size is 7, then 768; .* and 1 more; put it back"):
        check_identity("m", then, now)


# Digests


def test_merges_are_the_same_written_as_texts_or_as_pairs(tokenizer):
    from noback.engines.identity import _rules

    pairs = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    texts = {**pairs, "merges": [" ".join(pair) for pair in pairs["merges"]], "newer_switch": False}
    assert _rules(texts) == _rules(pairs)


def test_a_chat_template_counts_where_prompts_are_messages(tokenizer):
    before = tokenizer_digests(tokenizer, chat=True)
    kept, tokenizer.chat_template = tokenizer.chat_template, "{{ messages }}"
    try:
        after, plain = tokenizer_digests(tokenizer, chat=True), tokenizer_digests(tokenizer)
    finally:
        tokenizer.chat_template = kept
    assert {part for part in before if before[part] != after[part]} == {"chat"}
    assert "chat" not in plain


def test_the_settings_of_writing_count_where_answers_are_written(tiny_causal_folder, tmp_path):
    folder = shutil.copytree(tiny_causal_folder, tmp_path / "model")
    before = identity_of(open_model(str(folder), "float32", causal=True), chat=False, written=True)
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**settings, "eos_token_id": 5, "max_length": 9}))
    after = identity_of(open_model(str(folder), "float32", causal=True), chat=False, written=True)
    with pytest.raises(DamagedError, match=r"generation_config.json .*: eos_token_id is 5, then 2; put it back"):
        check_identity("m", before, after)


def test_steps_of_another_version_of_the_library_are_not_compared():
    recorded = {"tokenizer": {"texts": "a", "steps 0.1.0": "b"}}
    check_identity("m", recorded, {"tokenizer": {"texts": "a", "steps 0.2.0": "c"}})
    with pytest.raises(DamagedError, match="another way to cut texts"):
        check_identity("m", recorded, {"tokenizer": {"texts": "d", "steps 0.2.0": "c"}})


def test_what_is_stored_beside_the_weights_is_named():
    model = tiny_model("roberta")
    assert stored_beside(model) == {}
    model.register_buffer("scale", torch.tensor([1.0, 2.0]))
    model.register_buffer("table", torch.arange(3), persistent=False)
    assert set(stored_beside(model)) == {"scale"}
    same = {"model_config": {}, "buffers": "a"}
    check_identity("m", same, same)
    with pytest.raises(DamagedError, match="the buffers that are stored with the weights"):
        check_identity("m", same, {"model_config": {}, "buffers": "b"})
