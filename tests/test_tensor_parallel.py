"""Ranks that hold one model together: scores of one process, its moves to the bit, a part of its memory."""

import multiprocessing
import os
import socket
import traceback

import pytest
import torch
import transformers

from noback import Lora, RunConfig, Sgd, TwoSided, distributed, train
from noback.distributed import joined
from noback.run import Run, drawn_data
from noback.tuned import tuned_run
from noback.values import UNPERTURBED, Move, Term
from tests.conftest import NEGATIVE, POSITIVE, tiny_causal, tiny_model, write_rows

pytestmark = pytest.mark.filterwarnings("ignore:fan_in_fan_out")  # PEFT warns of what it does with GPT-2's linears
STEPS = 50
POINTS = [Move((Term(3, 1e-1),)), Move((Term(3, -1e-1),)), UNPERTURBED]
KINDS = ("roberta", "bert", "opt", "gpt2", "llama", "qwen2")
ADAPTERS = {
    "full": {},
    "lora": {"adapter": Lora(rank=4, targets="all-linear")},
    "low rank": {"noise": "rank1", "directions_per": "example"},
}


def tiny(kind):
    """A model whose heads two ranks can share, and whose biases are not zero."""
    model = made(kind)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("bias"):
                tensor.normal_(0, 0.1)
    return model


def made(kind):
    if kind in ("roberta", "bert"):
        return tiny_model(kind)
    if kind in ("opt", "gpt2"):
        return tiny_causal(kind)
    shared = {"vocab_size": 16384, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 160}
    configs = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}
    torch.manual_seed(7)
    config = configs[kind](**shared, **heads, pad_token_id=1, bos_token_id=0, eos_token_id=2)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Train, validation and test of eight sentences each."""
    folder = tmp_path_factory.mktemp("data")
    rows = [{"sentence": text, "label": label} for label, texts in ((1, POSITIVE), (0, NEGATIVE)) for text in texts]
    for split in ("train", "validation", "test"):
        write_rows(folder / f"{split}.jsonl", rows)
    return folder


def config_for(model, data, adapter="full"):
    kind = model.name
    return RunConfig(
        model=str(model),
        data=str(data),
        template="{sentence} It was {mask}." if kind in ("roberta", "bert") else "{sentence} It was",
        words={"0": "bad", "1": "good"},
        steps=STEPS,
        batch=8,
        eval_every=25,
        test_limit=8,
        rule=Sgd(lr=1e-2),
        estimator=TwoSided(eps=1e-2),
        **ADAPTERS[adapter],
    )


def opened(config, world=None):
    run = Run(config, world=world)
    run.task.use(drawn_data(config))
    return run


def scores_of(run):
    return [scores.tolist() for scores in run.engine.score(run.batch(0), POINTS)]


def held_bytes(run):
    """The bytes of a rank's layers: what they are made of is divided, but for norms and a few biases."""
    return sum(tensor.nbytes for name, tensor in run.model.named_parameters() if "layer" in name or ".h." in name)


def one_rank(rank, size, together, jobs, told):
    """A rank of several runs, one after the other; it tells what it saw in each."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1")
    torch.set_num_threads(1)
    distributed.TIMEOUT = 100.0
    try:
        for (name, config, out), port in jobs:
            os.environ["MASTER_PORT"] = str(port)
            with joined("examples", together) as world:
                run = opened(config, world)
                seen = {"scores": scores_of(run), "bytes": held_bytes(run), "base": run.base, "start": run.start}
                seen["slow"] = run.engine._engine.point_by_point
            os.environ["MASTER_PORT"] = str(port + 1)
            result = train(config, out, tensor_parallel=together)
            told.put((rank, name, {**seen, "final": result.final_weights}))
    except BaseException:  # whatever it is, the test shows it
        told.put((rank, None, traceback.format_exc()))
        raise


def world_of(size, together, jobs):
    """What each rank tells of each job: {name: [of rank 0, ...]}."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["noback.training", "peft", "tests.test_tensor_parallel"])
    told = processes.Queue()
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        first = held.getsockname()[1]
    placed = [(job, first + 2 * index) for index, job in enumerate(jobs)]
    running = [processes.Process(target=one_rank, args=(rank, size, together, placed, told)) for rank in range(size)]
    for process in running:
        process.start()
    found = {}
    for _ in range(size * len(jobs)):
        rank, name, seen = told.get(timeout=200)
        assert name is not None, seen
        found.setdefault(name, {})[rank] = seen
    for process in running:
        process.join()
    return {name: [seen[rank] for rank in range(size)] for name, seen in found.items()}


@pytest.fixture(scope="module", params=KINDS)
def two(request, data, tokenizer, tmp_path_factory):
    """A tiny model, and each way to tune it as two ranks that hold it together saw it: {adapter: of each rank}."""
    model, out = tmp_path_factory.mktemp("model") / request.param, tmp_path_factory.mktemp("two")
    tiny(request.param).save_pretrained(model)
    tokenizer.save_pretrained(model)
    configs = {adapter: config_for(model, data, adapter) for adapter in ADAPTERS}
    return configs, out, world_of(2, 2, [(adapter, config, out / adapter) for adapter, config in configs.items()])


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_two_ranks_score_as_one_process_does(two, adapter):
    configs, _, told = two
    alone = opened(configs[adapter])
    expected = torch.tensor(scores_of(alone))
    assert (expected[0] - expected[1]).abs().max() > 1e-5  # the tuned tensors are alive
    for rank in told[adapter]:
        torch.testing.assert_close(torch.tensor(rank["scores"]), expected, atol=1e-5, rtol=0)
        assert (rank["base"], rank["start"], rank["slow"]) == (alone.base, alone.start, False)
    assert told[adapter][0]["scores"] == told[adapter][1]["scores"]


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_one_process_replays_what_two_ranks_did_to_the_bit(two, adapter):
    _, out, told = two
    run, step = tuned_run(out / adapter, "final", snapshots=False)
    assert step == STEPS
    assert {rank["final"] for rank in told[adapter]} == {run.weights.digest()}
    assert run.weights.digest() != run.start


def test_each_rank_holds_its_part_of_the_layers(two):
    configs, _, told = two
    whole = held_bytes(opened(configs["full"]))
    for rank in told["full"]:
        assert rank["bytes"] < 0.6 * whole
