"""Runs of ranks that hold one model together: meshes, others that go on, ranks that are lost or harmed, refusals."""

import dataclasses
import json
import random
import re
import signal
import subprocess
import sys

import pytest
import torch

from noback import (
    Head,
    InputError,
    LocalEngine,
    Lora,
    Prefix,
    RunConfig,
    Sgd,
    TwoSided,
    resume,
    train,
)
from noback.distributed import Group, World
from noback.engines import open_model
from noback.engines.division import divided_linears
from noback.engines.loading import make_buffers
from noback.engines.stored import open_stored
from noback.journal import read_journal
from noback.tuned import tuned_run
from tests.conftest import tiny_causal, tiny_model
from tests.test_distributed import killed_after, started, together
from tests.test_tensor_parallel import tiny

STEPS = 12


@pytest.fixture
def config(tiny_folder, data_folder):
    """A tiny RoBERTa with two heads."""
    return RunConfig(
        model=str(tiny_folder),
        data=str(data_folder),
        steps=STEPS,
        batch=8,
        eval_every=6,
        test_limit=8,
        rule=Sgd(lr=1e-2),
        estimator=TwoSided(eps=1e-2),
    )


def replayed(out, at="final"):
    return tuned_run(out, at, snapshots=False)[0].weights.digest()


@pytest.mark.parametrize("divide", ["examples", "points"])
def test_two_groups_of_two_ranks_make_the_moves_of_one_process(config, tmp_path, divide):
    alone = train(dataclasses.replace(config, steps=1), tmp_path / "alone")
    said = together(4, config, tmp_path / "mesh", tensor_parallel=2, divide=divide)
    assert {weights for _, weights, _ in said} == {replayed(tmp_path / "mesh")}
    one, other = (read_journal(tmp_path / name / "journal").steps[0] for name in ("alone", "mesh"))
    assert other.slopes == pytest.approx(one.slopes, rel=1e-4)
    assert alone.steps == 1


def test_other_ranks_go_on_with_a_run(config, tmp_path):
    """Two ranks hold the model; then one process goes on, from the snapshot; then four ranks with two models."""
    out = tmp_path / "run"
    together(2, dataclasses.replace(config, steps=6), out, tensor_parallel=2)
    assert [path.name for path in (out / "snapshots").iterdir()] == ["step-0000006.safetensors"]
    resume(out, steps=9)
    said = together(4, config, out, tensor_parallel=2, steps=STEPS)
    assert {weights for _, weights, _ in said} == {replayed(out)}
    assert len(read_journal(out / "journal").steps) == STEPS
    run, _ = tuned_run(out, "final")
    assert run.weights.digest() == replayed(out)


def test_a_run_whose_ranks_are_killed_goes_on_to_the_same_bits(config, tmp_path):
    """Five SIGKILLs: of ranks that hold one model, and once of four ranks that hold two."""
    config = dataclasses.replace(config, engine=LocalEngine(micro_batch=4))  # each of two groups has one of these
    out, whole, chance = tmp_path / "killed", tmp_path / "whole", random.Random(3)
    (_, undisturbed, _), _ = together(2, config, whole, tensor_parallel=2)
    wanted, kills = 0, 0
    for size, victim in ((2, 1), (2, 0), (4, 3), (2, 0), (2, 1)):
        told, running = started(size, config, out, tensor_parallel=2)
        wanted += chance.choice([1, 2])
        killed_after(running, out, wanted, victim)
        kills += running[victim].exitcode == -signal.SIGKILL
        told.close()
    assert kills == 5
    (_, weights, _), _ = together(2, config, out, tensor_parallel=2)
    assert weights == undisturbed
    assert (out / "journal").read_bytes() == (whole / "journal").read_bytes()


def test_a_rank_that_hangs_amid_a_sum_is_named(config, tmp_path):
    told, running = started(4, config, tmp_path / "run", tensor_parallel=2, stalls=3, timeout=10.0)
    said = {rank: (kind, sentence) for rank, kind, sentence in (told.get(timeout=120) for _ in range(3))}
    running[3].kill()
    for process in running:
        process.join(60)
    assert {kind for kind, _ in said.values()} == {"LostRank"}
    assert "rank 3 of its group went away or did not answer within 10 s" in said[2][1]


def test_a_rank_that_dies_amid_a_sum_is_named(config, tmp_path):
    told, running = started(2, config, tmp_path / "run", tensor_parallel=2, dies=1)
    rank, kind, sentence = told.get(timeout=60)
    for process in running:
        process.join(60)
    assert (rank, kind) == (0, "LostRank")
    assert "rank 1 of its group went away" in sentence


@pytest.mark.parametrize(("size", "cut"), [(2, False), (4, True)])
def test_a_rank_whose_weights_are_not_those_of_the_others_is_named(config, tmp_path, size, cut):
    """Those that are whole on each rank, and, where there are two groups, those of which each has a part."""
    said = together(size, config, tmp_path / "run", tensor_parallel=2, harmed=size - 1, cut=cut)
    for rank, kind, sentence in said:
        assert kind == "InputError", (rank, sentence)
        like = f"rank {size - 1} has another set of weights after step 6 than rank {1 if cut else 0}"
        assert like in sentence


def test_workers_hold_a_model_together(config, tmp_path):
    (tmp_path / "run.toml").write_text(config.toml())
    command = [
        sys.executable,
        "-m",
        "noback",
        "train",
        "--config",
        str(tmp_path / "run.toml"),
        "--json",
        "--steps",
        "2",
    ]
    done = subprocess.run(
        [*command, "--workers", "2", "--tensor-parallel", "2", "--out", str(tmp_path / "run")],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["final_weights"] == replayed(tmp_path / "run")
    assert "2 ranks hold the model together, each " in done.stderr


def together_alone(heads=2):
    """A group of which this process is one rank; nothing is exchanged."""
    return World(0, heads, group=Group(0, heads, 0))


@pytest.mark.parametrize(
    ("ranks", "together", "sentence"),
    [
        ("1", 2, "tensor_parallel is 2 and there is one process; expected at least 2: start them with --workers 2"),
        ("3", 2, "tensor_parallel is 2 and there are 3 ranks; expected a number of ranks that 2 divides"),
        ("2", 0, "tensor_parallel is 0; expected a whole number above zero"),
    ],
)
def test_groups_that_the_ranks_cannot_form_are_refused(config, tmp_path, monkeypatch, ranks, together, sentence):
    monkeypatch.setenv("WORLD_SIZE", ranks)
    with pytest.raises(InputError, match=re.escape(sentence)):
        train(config, tmp_path / "run", tensor_parallel=together)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("model", "ranks", "sentence"),
    [
        (lambda: tiny_causal("llama"), 2, "the model has 1 key value heads; expected a divisor of 1"),
        (lambda: tiny_model("roberta"), 3, "the model has 2 attention heads; expected a divisor of 2"),
        (lambda: tiny("llama"), 4, "the model has 2 key value heads"),
        (lambda: tiny_causal("falcon"), 2, "a falcon model cannot be divided: neither transformers nor noback has a"),
        (lambda: tiny_causal("mixtral"), 1, "a mixtral model cannot be divided: its plan in transformers names"),
        (lambda: tiny_model("modernbert"), 2, "a modernbert model cannot be divided"),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused_and_never_copied(model, ranks, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        divided_linears(model(), ranks)


def test_units_that_ranks_cannot_share_evenly_are_refused():
    model = tiny("llama")
    model.model.layers[0].mlp.up_proj = torch.nn.Linear(16, 25)
    with pytest.raises(InputError, match=r"mlp.up_proj' has 25 outputs; expected a divisor of that"):
        divided_linears(model, 2)


@pytest.mark.parametrize("other", [{"adapter": Prefix()}, {"adapter": Head()}, {"adapter": Lora(), "quantise": "int8"}])
def test_what_needs_the_whole_model_is_refused(config, other):
    from noback.run import Run

    with pytest.raises(InputError, match="needs the whole of it: leave out --tensor-parallel"):
        Run(dataclasses.replace(config, **other), world=together_alone())


@pytest.mark.parametrize("kind", ["roberta", "bert", "opt", "gpt2", "llama", "qwen2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_buffers_are_made_as_the_library_makes_them(kind, dtype, tmp_path, tokenizer):
    tiny(kind).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    causal = kind not in ("roberta", "bert")
    whole = open_model(str(tmp_path / "model"), dtype, causal=causal).model
    opened, _ = open_stored(str(tmp_path / "model"), dtype, causal=causal)
    make_buffers(opened.model, torch.device("cpu"), causal=causal)
    expected, found = dict(whole.named_buffers()), dict(opened.model.named_buffers())
    assert expected.keys() == found.keys()
    for name, buffer in expected.items():
        assert found[name].dtype == buffer.dtype
        assert torch.equal(found[name], buffer)
