"""`noback bench`: its table, its file, and the sentences with which it refuses."""

import json
from contextlib import contextmanager

import pytest

from noback.bench import CONTENDERS

QUICK = ("--batch", 2, "--tokens", 12, "--repeats", 1)


def test_bench_prints_every_contender_and_writes_the_same_to_a_file(noback, tiny_folder, tmp_path):
    code, out, err = noback("bench", "--model", tiny_folder, *QUICK, "--json", "--out", tmp_path / "bench.json")
    assert code == 0, err
    table = json.loads(out)
    assert table == json.loads((tmp_path / "bench.json").read_text())
    assert [row["contender"] for row in table["contenders"]] == list(CONTENDERS)
    assert all(row["milliseconds"] > 0 and row["gap"] is None for row in table["contenders"])
    assert {"gpu", "cpu", "torch", "transformers", "commit", "date"} <= set(table["machine"])
    assert (table["case"]["batch"], table["case"]["tokens"], table["case"]["device"]) == (2, 12, "cpu")


def test_bench_shows_people_a_table_of_those_who_take_part(noback):
    code, out, err = noback("bench", "--shape", "mini", *QUICK, "--without", "adam,reference", "--dtype", "bfloat16")
    assert code == 0, err
    first, heads, forwards, ours, sweep = out.splitlines()
    assert first.startswith("mini: 10,727,424 weights in bfloat16, 10,727,424 tuned (full); 2 x 12 tokens")
    assert "/ forwards" in heads
    assert forwards.startswith("two plain forwards (eager")
    assert ours.startswith("noback ")
    assert "GB/s" in sweep


def test_bench_says_how_many_forwards_another_method_takes(noback, tiny_folder):
    words = (*QUICK, "--without", "adam,reference", "--estimator", "one_sided", "--directions", 3, "--rule", "momentum")
    code, out, err = noback("bench", "--model", tiny_folder, *words)
    assert code == 0, err
    assert "\nnoback (one_sided, momentum, 4 forwards)  " in out


def test_ctrl_c_prints_what_is_there_so_far(noback, tiny_folder, monkeypatch):
    calls = iter(range(100))

    @contextmanager
    def soon():
        yield lambda: next(calls) > 9

    monkeypatch.setattr("noback.cli.bench.stopping", soon)
    code, out, err = noback("bench", "--model", tiny_folder, *QUICK)
    assert code == 130
    assert "noback: stopped" in err
    assert "Adam: stopped" in out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--shape", "roberta-lage"), "shape is 'roberta-lage'; expected one of"),
        (("--shape", "roberta-lage"), "did you mean 'roberta-large'?"),
        (("--shape", "roberta-large", "--tokens", 513), "tokens is 513; model 'roberta-large' takes 512 at most"),
        (("--shape", "opt-13b", "--tokens", 4096), "tokens is 4096; model 'opt-13b' takes 2048 at most"),
        (("--tokens", 5000), "tokens is 5000; model 'mini' takes"),
        (("--batch", 2**62), "at most 268,435,456"),
        (("--batch", 0), "--batch is '0'; expected a whole number above zero"),
        (("--repeats", "many"), "--repeats is 'many'; expected a whole number above zero"),
        (("--without", "adams"), "without is 'adams'; expected one of"),
        (("--without", ",".join(CONTENDERS)), "without names every contender"),
        (("--adapter", "prefix"), "adapter is 'prefix'; expected one of full, lora"),
        (("--dtype", "float16"), "dtype is 'float16'; expected one of bfloat16, float32"),
        (("--device", "gpu"), "device is 'gpu'; expected one of auto, cpu, cuda"),
        (("--shape", "mini", "--model", "mini"), "--shape and --model are both given"),
        (("--out", "no/such/folder/bench.json"), "--out is 'no/such/folder/bench.json'; expected a file in a folder"),
    ],
)
def test_what_cannot_be_benched_is_refused(flags, said, refused):
    assert said in refused("bench", *flags)


def test_a_device_that_is_not_there_is_refused(refused, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "sees no GPU here" in refused("bench", "--device", "cuda")
