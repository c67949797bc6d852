"""Causal models on a CUDA GPU: the CPU's scores and texts, its journals, one copy of the weights, quantised bases."""

import dataclasses
import json

import pytest
import torch
import transformers

from noback import LocalEngine
from noback.adapters import Lora, base_tensors
from noback.config import RunConfig
from noback.engines import Local, Writing, chosen_device, loading, open_model
from noback.evaluating import answers
from noback.folder import RunFolder
from noback.run import Run, drawn_data
from noback.tasks import load_spec
from noback.tensor_bytes import digest
from noback.training import train
from noback.tuned import tuned_run
from noback.values import UNPERTURBED, Move, Term
from tests.conftest import rows_of, tiny_causal, weights_of, write_rows
from tests.engines.test_causal import BATCHES, choices_batch
from tests.gpu.test_gpu import both_sides

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]

DEVICE = "cuda"
SEED, OTHER_SEED = 0x123456789ABCDEF0, 0xFFFFFFFFFFFFFFF1
KINDS = ["llama", "opt", "mini-causal"]  # the tiny ones have narrow matrices only
TEXTS = ["This film was", "I", "The best thing about the story is that the actors", "A long time ago there was"]
# At these points the embedded model's first and second choice are at least 1e-3 apart for every token that it writes
# here, and a GPU's logits are within 1e-4 of a CPU's: another token would be a mistake, not a tie.
WRITTEN_AT = [UNPERTURBED, Move((Term(SEED, 1e-2),)), Move((Term(SEED, 1e-2), Term(OTHER_SEED, -1e-2)))]


def opened(kind, device, tokenizer):
    """The same model on any device, and its tokenizer."""
    if kind == "mini-causal":
        found = open_model(kind, "float32", chosen_device(device), causal=True)
        return found.model, found.tokenizer
    return tiny_causal(kind).to(device), tokenizer


def pair(seed):
    return both_sides(seed, 1e-2)


def other_tokens(batch):
    """A batch of the same shape: its rows' tokens in the reverse order."""
    inputs = {**batch.inputs, "input_ids": batch.inputs["input_ids"].flip(0)}
    return dataclasses.replace(batch, inputs=inputs)


def agree(ours, theirs, tolerance=2e-4):
    return all(torch.allclose(*pair, atol=tolerance, rtol=0) for pair in zip(ours, theirs, strict=True))


# Scores


@pytest.mark.parametrize("read", BATCHES)
@pytest.mark.parametrize("kind", KINDS)
def test_plain_captured_and_replayed_forwards_score_as_the_cpu_does(kind, read, tokenizer):
    engines = []
    for device in ("cpu", DEVICE):
        model, own = opened(kind, device, tokenizer)
        batch, word_ids = BATCHES[read](own)
        engines.append(Local(model, weights_of(model), word_ids, share="none"))
    here, there = engines
    before = there.weights.digest()
    # One shape, so that the calls are a plain forward, its capture and its replay; each with other values.
    calls = [(batch, SEED), (batch, OTHER_SEED), (other_tokens(batch), 7), (batch, SEED)]
    found = []
    for number, (shown, seed) in enumerate(calls):
        expected = here.score(shown, pair(seed))
        found.append(there.score(shown, pair(seed)))
        assert agree(found[-1], expected), f"call {number}"
        assert all(scores.device.type == "cpu" for scores in found[-1])
        assert len(there.runner.captured()) == min(number, 1)
    assert there.runner.refused() is None
    assert not there.point_by_point
    assert not agree(found[0], found[1], 1e-3)  # the points are apart, so agreement means something
    assert agree(found[0], found[3], 5e-5)
    assert there.weights.digest() == before == here.weights.digest()


@pytest.mark.parametrize("limits", [{"micro_batch": 1}, {"probes_per_pass": 1}], ids=["examples", "points"])
def test_choices_in_smaller_passes_score_as_all_at_once(limits, tokenizer):
    model, _ = opened("llama", DEVICE, tokenizer)
    batch, word_ids = choices_batch(tokenizer)
    whole, cut = (Local(model, weights_of(model), word_ids, **some) for some in ({}, limits))
    for seed in (SEED, OTHER_SEED, 7):
        assert agree(cut.score(batch, pair(seed)), whole.score(batch, pair(seed)))


def asks_for_a_value(_, inputs):
    """The CPU waits for the GPU, which a capture forbids."""
    inputs[0].sum().item()


def test_a_model_that_cannot_be_captured_is_scored_plainly_and_spoils_nothing(tokenizer):
    here, _ = opened("llama", "cpu", tokenizer)
    there, _ = opened("llama", DEVICE, tokenizer)
    batch, word_ids = choices_batch(tokenizer)
    there.model.layers[1].mlp.register_forward_pre_hook(asks_for_a_value)
    expected = Local(here, weights_of(here), word_ids, share="none")
    engine = Local(there, weights_of(there), word_ids)
    for seed in (SEED, OTHER_SEED, 7, SEED):
        assert agree(engine.score(batch, pair(seed)), expected.score(batch, pair(seed)))
    assert engine.runner.refused() is not None
    assert not engine.runner.captured()
    assert not torch.cuda.is_current_stream_capturing()
    assert bool((torch.rand(1000, device=DEVICE) < 1).all())  # the GPU's random numbers still come
    model, _ = opened("opt", DEVICE, tokenizer)
    another = Local(model, weights_of(model), word_ids)
    first, _, third = (another.score(batch, pair(seed)) for seed in (SEED, OTHER_SEED, SEED))
    assert another.runner.refused() is None
    assert another.runner.captured()
    assert agree(first, third, 5e-5)


# Texts


@pytest.fixture(scope="module")
def minis():
    """The embedded model on either device."""
    return [open_model("mini-causal", "float32", chosen_device(device), causal=True) for device in ("cpu", DEVICE)]


def prompts_of(tokenizer):
    return [[0, *tokenizer.encode(text, add_special_tokens=False)] for text in TEXTS]


@pytest.mark.parametrize("stop", [(), (".", "but")], ids=["", "stop"])
@pytest.mark.parametrize("hold", [True, False], ids=["held", "each"])
def test_a_displaced_model_writes_the_tokens_that_it_writes_on_the_cpu(minis, hold, stop):
    written = []
    for model, tokenizer, *_ in minis:
        said = []
        engine = Local(model, weights_of(model), None, hold=hold, say=said.append)
        before = engine.weights.digest()
        written.append(engine.write(prompts_of(tokenizer), WRITTEN_AT, Writing(tokenizer, 12, stop)))
        assert said == []  # held tensors write what the point writes
        assert engine.weights.digest() == before
    here, there = written
    assert there == here
    assert all(one != other for one, other in zip(here[0], here[1], strict=True))  # the points are apart


def test_a_batch_of_prompts_is_answered_as_each_by_itself(minis):
    model, tokenizer, *_ = minis[1]
    engine, prompts, writing = Local(model, weights_of(model), None), prompts_of(tokenizer), Writing(tokenizer, 12)
    many = engine.write(prompts, WRITTEN_AT, writing)
    alone = [engine.write([prompt], WRITTEN_AT, writing) for prompt in prompts]
    assert many == [[one[point][0] for one in alone] for point in range(len(WRITTEN_AT))]


def test_scores_after_writing_are_those_before_it(minis):
    """The modules hold other tensors while a point writes; a captured forward reads the weights themselves."""
    model, tokenizer, *_ = minis[1]
    batch, word_ids = choices_batch(tokenizer)
    engine = Local(model, weights_of(model), word_ids)
    first, _, _ = (engine.score(batch, pair(SEED)) for _ in range(3))
    engine.write(prompts_of(tokenizer), WRITTEN_AT[1:2], Writing(tokenizer, 3))
    assert engine.runner.captured()
    assert agree(engine.score(batch, pair(SEED)), first, 5e-5)


# Runs


@pytest.fixture
def config_for(tmp_path):
    def made(name, **options):
        rows = rows_of(load_spec(name))
        if name == "record":  # choices that do not show would all be the same
            rows = [{**row, "query": "@placeholder ran home."} for row in rows]
        data = write_rows(tmp_path / f"{name}.jsonl", rows)
        return RunConfig(**{"model": "mini-causal", "task": name, "data": str(data), "steps": 2, "batch": 4, **options})

    return made


def test_written_answers_of_a_whole_set_do_not_depend_on_the_batch(config_for, tmp_path):
    rows = [{"prompt": text, "completion": "a film"} for text in TEXTS * 3]
    task = tmp_path / "short.toml"
    task.write_text(
        'name = "short"\nprompt = "{prompt}"\nlabel = "completion"\nmax_new_tokens = 12\nmetric = "token_f1"\n'
    )
    data = write_rows(tmp_path / "data.jsonl", rows)
    texts = []
    for batch in (1, 4):
        config = RunConfig(model="mini-causal", task=str(task), data=str(data), batch=batch, device=DEVICE)
        run = Run(config, RunFolder("."))
        run.task.use(drawn_data(config))
        texts.append([one.text for one in answers(run, "test").written])
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1
    assert all(texts[0])


@pytest.mark.parametrize("model", ["tiny", "mini-causal"])
@pytest.mark.parametrize("name", ["copa", "record", "instructions"])
def test_a_causal_run_on_the_gpu_replays_on_the_cpu_to_the_same_bits(
    name, model, config_for, tiny_causal_folder, noback, tmp_path
):
    config = config_for(name)
    code, out, err = noback(
        "train", "--model", tiny_causal_folder if model == "tiny" else model, "--task", name, "--data", config.data,
        "--steps", 2, "--batch", 4, "--test-limit", 4, "--device", DEVICE, "--out", tmp_path / "run", "--json",
    )  # fmt: skip
    assert code == 0, err
    run, _ = tuned_run(tmp_path / "run", "final", device="cpu", snapshots=False)
    assert run.device.type == "cpu"
    assert run.weights.digest() == json.loads(out)["final_weights"] != run.start


# Memory


@pytest.fixture(scope="module")
def medium(tmp_path_factory, tokenizer):
    """A Llama of about 80 MB in float32."""
    folder = tmp_path_factory.mktemp("medium") / "model"
    config = transformers.LlamaConfig(
        vocab_size=16384, hidden_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=8,
        intermediate_size=1408, max_position_embeddings=128, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        tie_word_embeddings=True,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("accelerate", [True, False], ids=["accelerate", "without"])
def test_a_model_is_opened_without_a_second_copy_on_the_gpu(medium, accelerate, monkeypatch):
    if accelerate:
        pytest.importorskip("accelerate")
    else:
        monkeypatch.setattr(loading, "find_spec", lambda _: None)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = open_model(str(medium), "float32", torch.device(DEVICE, 0), causal=True).model
    peak, after = torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())  # tied ones once
    assert 50e6 < weights < 100e6
    assert {tensor.device for tensor in model.parameters()} == {torch.device(DEVICE, 0)}
    assert not any("forward" in module.__dict__ for module in model.modules())  # no hook between the engine and it
    assert after < 1.05 * weights
    assert peak < 1.2 * weights


# Quantised bases


@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_a_quantised_base_scores_as_on_the_cpu_in_captured_forwards_too(bits, tiny_causal_folder, config_for):
    pytest.importorskip("bitsandbytes")
    runs = []
    for device in ("cpu", DEVICE):
        config = config_for(
            "copa",
            model=str(tiny_causal_folder),
            adapter=Lora(rank=2),
            quantise=bits,
            device=device,
            engine=LocalEngine(share="none"),
        )
        run = Run(config, RunFolder("."))
        run.task.use(drawn_data(config))
        runs.append(run)
    here, there = runs
    assert there.base == here.base  # the same stored bits, of which the journal has the digest
    assert there.start == here.start
    batch = here.batch(0)
    for seed in (SEED, OTHER_SEED, 7):
        points = both_sides(seed, 1e-1)
        ours, theirs = there.engine.score(batch, points), here.engine.score(batch, points)
        assert agree(ours, theirs)
        assert not torch.allclose(theirs[0], theirs[1], atol=1e-6, rtol=0)  # the tuned tensors are alive
    assert there.engine.runner.refused() is None
    assert there.engine.runner.captured()
    assert digest(base_tensors(there.model)) == digest(base_tensors(here.model))


@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_a_run_over_a_quantised_base_replays_on_the_cpu_to_the_same_bits(bits, config_for, tmp_path):
    pytest.importorskip("bitsandbytes")
    config = config_for("copa", adapter=Lora(rank=2), quantise=bits, device=DEVICE, test_limit=4)
    result = train(config, tmp_path / "run")
    run, _ = tuned_run(tmp_path / "run", "final", device="cpu", snapshots=False)
    assert run.weights.digest() == result.final_weights != run.start
