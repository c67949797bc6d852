"""The default: a run has the exact readout wherever there can be one, and the label words alone elsewhere."""

import dataclasses
import json
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest
import torch

import noback
from noback import AutoReadout, ExactReadout, InputError, Result, RunConfig, export, predict
from noback.cli.flags import config_from
from noback.cli.main import _parser
from noback.config import config_of, read_config
from noback.flag_names import FLAGS
from noback.folder import RunFolder
from noback.journal import read_header, read_journal
from noback.keywords import config_with
from noback.reporting.command import command_to_repeat
from noback.run import Run, recorded_config
from noback.training import train
from noback.tuned import tuned_run
from noback.watching import Silent
from tests.conftest import tiny_causal, tiny_model

pytestmark = pytest.mark.usefixtures("as_people_have_it")
OLD = Path(__file__).parent.parent / "data" / "journals-0.1.0"
CAUSAL = {"template": "An opinion: {sentence} It was", "words": "0= bad,1= good"}


@pytest.fixture
def options(tiny_folder, data_folder):
    """A small run by keyword that says nothing of a readout."""
    return {
        "model": str(tiny_folder), "data": str(data_folder), "steps": 2, "batch": 4, "eval_every": 1, "test_limit": 8,
    }  # fmt: skip


class Told(Silent):
    """Keeps the notes about readouts."""

    def __init__(self):
        self.said = []

    def note(self, text):
        self.said += [text] if text.startswith("readout") else []


def test_a_run_by_default_fits_the_exact_readout_and_its_folder_says_only_that(options, tmp_path):
    assert RunConfig().readout == AutoReadout()
    told = Told()
    result = noback.train(out=tmp_path / "run", watcher=told, **options)
    assert told.said == []
    assert isinstance(result, Result)
    assert result.frozen_readout is not None
    header, table = read_header(tmp_path / "run" / "journal"), read_config(tmp_path / "run" / "run.toml")
    assert header["config"]["readout"] == table["readout"] == {"kind": "exact", "examples": 4096, "refits": 2}
    run, _ = tuned_run(tmp_path / "run", "final", snapshots=False)
    assert run.config.readout == ExactReadout()
    assert run.readout_values == read_journal(tmp_path / "run" / "journal").readout_at(2)


def test_a_run_by_default_is_the_exact_one_to_the_bit(options, tmp_path):
    by_default = noback.train(out=tmp_path / "default", **options)
    by_name = noback.train(out=tmp_path / "exact", readout="exact", **options)
    journals = [(tmp_path / name / "journal").read_bytes() for name in ("default", "exact")]
    assert (by_default.weights, journals[0]) == (by_name.weights, journals[1])


def test_the_options_of_the_readout_are_the_defaults_own(options, tmp_path):
    noback.train(out=tmp_path / "run", readout_refits=0, readout_decay=0.5, **options)
    assert recorded_config(RunFolder(tmp_path / "run")).readout == ExactReadout(decay=0.5, refits=0)


LEFT_OUT = {
    "an adapter without label words": ({"adapter": "head"}, "for adapter 'head' reads no label words"),
    "an objective without a gradient": ({"objective": "accuracy"}, "for objective 'accuracy' has no gradient to fit"),
    "a task with choices": (
        {"task": "copa", "data": "choices"}, "for task 'copa' reads no label words",
    ),
    "a task with written answers": (
        {"task": "squad", "data": "written"}, "for task 'squad' reads no label words",
    ),
    "words of several tokens": (
        {"model": "causal", **CAUSAL, "words": "0= an utterly dreadful thing,1= good"},
        "are several for this tokenizer",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changed", "sentence"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_where_there_can_be_none_it_is_left_out_and_that_is_said_once(
    options, changed, sentence, tmp_path, tiny_causal_folder
):
    places = {"model": {"causal": str(tiny_causal_folder)}, "data": _data(tmp_path, changed.get("task"))}
    changed = {name: places.get(name, {}).get(value, value) for name, value in changed.items()}
    if "data" in changed:
        changed["model"] = str(tiny_causal_folder)
    told = Told()
    config = config_with(None, {**options, **changed})
    train(config, tmp_path / "run", watcher=told)
    assert len(told.said) == 1, told.said
    assert told.said[0].startswith("readout: left out")
    assert sentence in told.said[0]
    assert tomllib.loads((tmp_path / "run" / "run.toml").read_text())["readout"] == "words"
    header = read_header(tmp_path / "run" / "journal")
    assert "readout" not in header
    assert "readout" not in header["config"]


def _data(tmp_path, task):
    """Files of tasks whose answers are no label words."""
    from noback.tasks import load_spec
    from tests.conftest import rows_of, write_rows

    if task is None:
        return {}
    path = str(write_rows(tmp_path / "data.jsonl", rows_of(load_spec(task))))
    return {"choices": path, "written": path}


def test_a_model_that_cannot_hold_one_leaves_it_out_and_by_name_refuses_it(options, tokenizer, tmp_path):
    class Bounded(type(tiny_model("roberta"))):
        def forward(self, *values, **named):
            found = super().forward(*values, **named)
            found.logits = found.logits.tanh()
            return found

    def bounded():
        model = tiny_model("roberta")
        model.__class__ = Bounded
        model.__class__.__name__ = "RobertaForMaskedLM"
        return model

    rest = {name: value for name, value in options.items() if name != "model"}
    told = Told()
    noback.train(model=bounded(), tokenizer=tokenizer, out=tmp_path / "run", watcher=told, **rest)
    assert [text.startswith("readout: left out: ") and "changes what its decoder" in text for text in told.said] == [1]
    with pytest.raises(InputError, match=r"changes what its decoder gives .* leave it out \(--readout words\)"):
        noback.train(model=bounded(), tokenizer=tokenizer, out=tmp_path / "exact", readout="exact", **rest)


def test_on_servers_it_is_left_out():
    from noback.answers import fitted, left_out

    config = RunConfig(engine="sglang", adapter="lora", task="reviews-causal", model="mini-causal")
    assert fitted(config, config.spec()).readout is None
    assert "engine 'sglang' answers with scores" in left_out(config, config.spec())
    asked = dataclasses.replace(config, readout="exact")
    assert fitted(asked, asked.spec()).readout == ExactReadout()
    with pytest.raises(InputError, match="engine 'sglang' answers with scores, and a readout needs"):
        Run(asked)


def test_where_ranks_hold_the_model_together_it_is_left_out():
    from noback.answers import fitted, left_out

    config = RunConfig()
    assert fitted(config, config.spec()).readout == AutoReadout()
    assert fitted(config, config.spec(), divided=True).readout is None
    assert "ranks hold the model together" in left_out(config, config.spec(), divided=True)


def test_words_by_name_are_the_label_words_alone(options, tmp_path):
    for number, named in enumerate(("words", None)):
        told = Told()
        noback.train(out=tmp_path / str(number), readout=named, watcher=told, **options)
        assert told.said == []
    assert (tmp_path / "0" / "journal").read_bytes() == (tmp_path / "1" / "journal").read_bytes()
    assert recorded_config(RunFolder(tmp_path / "0")).readout is None
    assert tomllib.loads((tmp_path / "0" / "run.toml").read_text())["readout"] == "words"


@pytest.mark.parametrize("readout", [None, AutoReadout(), AutoReadout(decay=0.5), ExactReadout(refits=0)], ids=str)
def test_a_configuration_comes_back_from_toml_keywords_and_flags(readout, tmp_path):
    config = RunConfig(readout=readout)
    assert config_of(tomllib.loads(config.toml())).readout == readout
    assert config_with(config, {"seed": 1}).readout == readout
    line = " ".join(command_to_repeat(config.table(), FLAGS))
    assert config_from(_parser("train").parse_args(shlex.split(line)[1:])).readout == readout
    (tmp_path / "run.toml").write_text(config.toml())
    by_file = _parser("train").parse_args(["train", "--config", str(tmp_path / "run.toml")])
    assert config_from(by_file).readout == readout
    assert config_of(config.given()).readout == readout


@pytest.mark.parametrize(
    ("words", "readout"),
    [
        ([], AutoReadout()),
        (["--readout", "words"], None),
        (["--readout", "auto"], AutoReadout()),
        (["--readout", "exact"], ExactReadout()),
        (["--readout-refits", "1"], AutoReadout(refits=1)),
        (["--readout", "exact", "--readout-decay", "0.5"], ExactReadout(decay=0.5)),
        (["--set", "readout.decay=0.5"], AutoReadout(decay=0.5)),
    ],
    ids=str,
)
def test_flags_say_which_readout(words, readout):
    assert config_from(_parser("train").parse_args(["train", *words])).readout == readout


def test_a_journal_without_a_readout_says_nothing_of_one_as_before_there_were_any():
    """So its digest is that of an older journal with the same options."""
    config = RunConfig(readout=None)
    table = config.table()
    assert table.pop("readout") == "words"
    assert config.recorded() == table
    assert config.digest() != RunConfig().digest()


def test_a_folder_that_is_older_than_readouts_goes_on_and_repeats_without_one(tmp_path, capsys):
    from noback.cli.main import main

    shutil.copytree(OLD / "full", tmp_path / "run")
    assert recorded_config(RunFolder(tmp_path / "run")).readout is None
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")]) == 0
    assert "--readout words" in (tmp_path / "page.html").read_text()
    shutil.copy(OLD / "full" / "journal", tmp_path / "journal")
    assert tuned_run(tmp_path / "journal", "base")[0].config.readout is None


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", ["roberta", "llama"])
def test_a_model_in_memory_holds_its_readout_at_the_end(options, tokenizer, tmp_path, kind, tied):
    causal = kind == "llama"
    model = (tiny_causal if causal else tiny_model)(kind, tied=tied)
    rest = {name: value for name, value in options.items() if name != "model"} | (CAUSAL if causal else {})
    base = tmp_path / "base"
    model.save_pretrained(base)
    tokenizer.save_pretrained(base)
    learns = {name: one.requires_grad for name, one in model.named_parameters()}
    noback.train(model=model, tokenizer=tokenizer, out=tmp_path / "run", **rest)
    assert learns.items() <= {name: one.requires_grad for name, one in model.named_parameters()}.items()
    run, _ = tuned_run(tmp_path / "run", model=str(base))
    assert run.readout is not None
    prompts = run.task.prompts([("a warm and funny film",)])
    with torch.no_grad():
        found = model(**prompts.inputs).logits[0, prompts.mask_positions[0]][run.task.word_ids]
    chances = list(predict(run, "a warm and funny film")[0].values())
    assert torch.softmax(found.double(), 0).tolist() == pytest.approx(chances, abs=1e-6)
    model.save_pretrained(tmp_path / "saved")
    again = type(model).from_pretrained(tmp_path / "saved")
    with torch.no_grad():
        same = again(**prompts.inputs).logits[0, prompts.mask_positions[0]][run.task.word_ids]
    torch.testing.assert_close(same, found)


def test_a_run_by_default_is_exported_as_a_plain_folder_that_answers_as_it_does(options, tmp_path):
    import transformers

    noback.train(out=tmp_path / "run", **options)
    run, _ = tuned_run(tmp_path / "run")
    export(run, tmp_path / "out")
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    prompts = run.task.prompts([("a warm and funny film",)])
    with torch.no_grad():
        found = model(**prompts.inputs).logits[0, prompts.mask_positions[0]][run.task.word_ids]
    chances = list(predict(run, "a warm and funny film")[0].values())
    assert torch.softmax(found.double(), 0).tolist() == pytest.approx(chances, abs=1e-6)


def test_an_adapter_is_exported_with_a_note_of_where_its_readout_is(options, tmp_path, noback):
    flags = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    assert noback("train", *flags, "--adapter", "lora", "--out", tmp_path / "run")[0] == 0
    code, _, err = noback("export", tmp_path / "run", tmp_path / "out")
    assert (code, (tmp_path / "out" / "readout.safetensors").is_file()) == (0, True)
    assert "the readout is in a file beside the adapter" in err
    code, _, err = noback("export", tmp_path / "run", tmp_path / "merged", "--merge")
    assert (code, "beside the adapter" in err) == (0, False)
    code, _, err = noback("export", tmp_path / "run", tmp_path / "streamed", "--stream")
    assert code == 2


def test_what_measures_the_published_method_stays_on_the_words(options, tmp_path):
    noback.compare(objectives=["cross_entropy", "accuracy"], out=tmp_path / "compared", **options)
    noback.compare(objectives=["cross_entropy"], out=tmp_path / "asked", readout="exact", **options)
    headers = {path.parent.parent.name: read_header(path) for path in tmp_path.glob("*/*/journal")}
    assert {name: "readout" in header for name, header in headers.items()} == {"compared": False, "asked": True}
    found = noback.epsilon(at=[1e-3], objectives=["cross_entropy"], probes=2, out=tmp_path / "epsilon", **options)
    assert found["config"]["readout"] == "words"


def test_a_sweep_follows_the_default_and_goes_on_where_it_is_older(options, tmp_path):
    found = noback.sweep(lr=[1e-6, 1e-5], out=tmp_path / "sweep", **options)
    assert "--readout auto" in found["winner"]["command"]
    assert all("readout" in read_header(path) for path in (tmp_path / "sweep").glob("*/journal"))
    noback.sweep(lr=[1e-6, 1e-5], out=tmp_path / "words", readout="words", **options)
    file = tmp_path / "words" / "sweep.json"
    table = json.loads(file.read_text())
    assert table["config"].pop("readout") == "words"
    file.write_text(json.dumps(table))
    noback.sweep(lr=[1e-6, 1e-5], out=tmp_path / "words", readout="words", **options)
    with pytest.raises(InputError, match="holds another sweep"):
        noback.sweep(lr=[1e-6, 1e-5], out=tmp_path / "words", **options)
