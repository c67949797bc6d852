"""Point 6: the page about a run from someone else, walked through row by row."""

import base64
import hashlib
import json
import math
import os
import re
import shutil
import struct
import zlib
from pathlib import Path

import pytest
import tomli_w

from noback import Prefix
from noback.journal import Evaluation, Seal, StepRecord, read_journal
from tests.conftest import tiny_model
from tests.hostile.conftest import trained
from tests.hostile.forging import forge, records_in_order
from tests.hostile.rewarding import rewarded_run

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "received.md"
ROWS = re.findall(r"^\| ([^|`]+) \| `(\w+)` \| `([^`]+)` \|$", PAGE.read_text(), re.MULTILINE)
GOES_ON = ("has a snapshot of another run", "had its end cut off", "writes control characters to your terminal")


def with_config(run, **changed):
    forge(run, header=lambda header: header["config"].update(changed))


def names_a_function(run, _tmp):
    function = {"kind": "function", "function": "harm:f", "reads": "logits", "smooth": False}
    with_config(run, objective=function)


def names_a_reward(run, tmp, causal):
    shutil.rmtree(run)
    shutil.move(rewarded_run(causal, tmp), run)
    with_config(run, objective={"kind": "reward", "function": "harm:f", "hold": True})


def link_for(name):
    def make(run, tmp):
        shutil.move(run / name, tmp / "outside")
        (run / name).symlink_to(tmp / "outside")

    return make


def pipe_for_lock(run, _tmp):
    (run / "lock").unlink()
    os.mkfifo(run / "lock")


def foreign_snapshot(run, tmp):
    other = trained(read_journal(run / "journal").header["config"]["model"], tmp / "other", seed=5)
    shutil.rmtree(run / "snapshots")
    shutil.copytree(other / "snapshots", run / "snapshots")


def change_record(change):
    return lambda run, _tmp: forge(run, records=lambda records: [change(one) for one in records])


def nan_slopes(one):
    return StepRecord(one.step, one.loss, (math.nan,)) if isinstance(one, StepRecord) else one


def late_evaluation(one):
    return Evaluation(4_000_000_000, 0.9, 0.1) if isinstance(one, Evaluation) and one.step else one


def too_many_steps(run, _tmp):
    def more(records):
        return [one for one in records if not isinstance(one, Seal)] + [StepRecord(6, 0.5, (1.0,))]

    forge(run, records=more)


def huge_prefix(run, _tmp):
    with_config(run, adapter={"kind": "prefix", "tokens": 10**9})


def huge_directions(run, _tmp):
    with_config(run, estimator={"kind": "two_sided", "eps": 1e-2, "directions": 2**64})


def growing_tensors(run, tmp):
    """A prefix whose packed start claims the right names and shapes and holds far more."""
    model = read_journal(run / "journal").header["config"]["model"]
    shutil.rmtree(run)
    shutil.move(trained(model, tmp / "prefix", adapter=Prefix(tokens=2)), run)
    bomb = base64.b64encode(zlib.compress(bytes(2**26), 9)).decode()

    def change(header):
        next(iter(header["start_tensors"].values()))["bytes"] = bomb

    forge(run, header=change)


def rewrite_header(run, text):
    contents = read_journal(run / "journal")
    body = b"noback journal 3\n" + struct.pack("<I", len(text)) + text
    digest = hashlib.blake2b(body, digest_size=16).digest()
    records = (run / "journal").read_bytes()[contents.sound_bytes - 4 * contents.record_bytes :]
    (run / "journal").write_bytes(body + digest[:8] + records)


def cut_off(run, _tmp):
    path, size = run / "journal", read_journal(run / "journal").record_bytes
    path.write_bytes(path.read_bytes()[: -3 * size])


def without_an_evaluation(run, _tmp):
    path, contents = run / "journal", read_journal(run / "journal")
    data, size, count = path.read_bytes(), contents.record_bytes, len(records_in_order(contents))
    begin = len(data) - size * count
    path.write_bytes(data[: begin + 3 * size] + data[begin + 4 * size :])


def from_another_model(run, tmp):
    config = read_journal(run / "journal").header["config"]
    shutil.copytree(config["model"], tmp / "model")
    import torch

    torch.manual_seed(1)
    model = tiny_model("roberta")
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    model.save_pretrained(tmp / "model")
    with_config(run, model=str(tmp / "model"))


def control_characters(run, _tmp):
    with_config(run, model="mini\x1b[2J")


MADE = {
    "names a function of its own as the objective": names_a_function,
    "names a reward's function": names_a_reward,
    "has a link in place of its journal": link_for("journal"),
    "has a link in place of its lock": link_for("lock"),
    "has a link in place of its metrics": link_for("metrics.jsonl"),
    "has a link in place of its folder of snapshots": link_for("snapshots"),
    "has metrics that are a terabyte of nothing": lambda run, _: os.truncate(run / "metrics.jsonl", 2**40),
    "has a pipe in place of its lock": pipe_for_lock,
    "has a snapshot of another run": foreign_snapshot,
    "holds slopes that are no numbers": change_record(nan_slopes),
    "holds an evaluation at step 4,000,000,000": change_record(late_evaluation),
    "holds more steps than its run has": too_many_steps,
    "asks for a prefix of 1,000,000,000 tokens": huge_prefix,
    "asks for 2^64 directions": huge_directions,
    "holds packed tensors that grow a thousandfold": growing_tensors,
    "has a header that is a list": lambda run, _: rewrite_header(run, b"[1, 2]"),
    "has a header nested a hundred thousand deep": lambda run, _: rewrite_header(run, b"[" * 100_000),
    "had its end cut off": cut_off,
    "had an evaluation taken out": without_an_evaluation,
    "was made from another model": from_another_model,
    "writes control characters to your terminal": control_characters,
}


def test_every_row_of_the_page_is_walked_through():
    assert [row[0] for row in ROWS] == list(MADE)


@pytest.mark.parametrize(("what", "command", "said"), ROWS, ids=[row[0] for row in ROWS])
def test_what_the_page_says_of_a_received_folder_is_so(
    run, tmp_path, noback, monkeypatch, request, what, command, said
):
    harm = tmp_path / "here"
    harm.mkdir()
    (harm / "harm.py").write_text(
        "import pathlib\npathlib.Path('mark').write_text('harm')\ndef f(*_):\n    return 0.5\n"
    )
    monkeypatch.chdir(harm)
    more = [request.getfixturevalue("tiny_causal_folder")] if MADE[what] is names_a_reward else []
    MADE[what](run, tmp_path, *more)
    before = outside(tmp_path)
    more = [tmp_path / "out", "--at", "final"] if command in ("replay", "export") else []
    code, out, err = noback(command, run, *more)
    assert said in (out if what == GOES_ON[2] else err), err
    assert code == (0 if what in GOES_ON else 2), err
    assert "Traceback" not in err
    assert outside(tmp_path) == before
    assert not (harm / "mark").exists()
    assert "\x1b" not in out + err


def outside(folder):
    """Every file but the run's and what was asked for."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {
        str(path): hashlib.blake2b(path.read_bytes()).hexdigest()
        for path in files
        if path.relative_to(folder).parts[0] not in ("run", "out")
    }


def test_the_forged_folders_differ_from_the_sound_one_in_one_thing(run, noback, tmp_path):
    """A folder that was forged without a change is replayed: what is refused above is refused for its row's reason."""
    forge(run)
    assert noback("replay", run, tmp_path / "out")[0] == 0
    json.loads(noback("journal", run, "--json")[1])
    assert tomli_w.dumps(read_journal(run / "journal").header["config"]) == (run / "run.toml").read_text()
