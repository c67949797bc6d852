"""Point 7: runs as a set. `noback runs` lists them."""

import json
import os
import subprocess
import sys

import pytest

from noback.training import Interrupted, train


@pytest.fixture
def runs(small, tmp_path):
    """A folder with a finished run, a stopped one, a damaged one and one that is no run."""
    folder = tmp_path / "runs"
    train(small(), folder / "done")
    train(small(), folder / "harmed")
    with open(folder / "harmed" / "journal", "r+b") as file:
        file.seek(-60, os.SEEK_END)
        file.write(b"????")
    steps = iter([False, False, True])
    with pytest.raises(Interrupted):
        train(small(seed=1), folder / "halted", stop=lambda: next(steps))
    (folder / "foreign").mkdir()
    (folder / "foreign" / "notes.txt").write_text("nothing of noback's")
    return folder


def listed(noback, *folders):
    code, out, _ = noback("runs", *folders, "--json")
    assert code == 0
    return {row["run"].rsplit("/", maxsplit=1)[-1]: row for row in json.loads(out)["runs"]}


def test_runs_are_listed_with_what_tells_them_apart(runs, noback, tiny_folder):
    rows = listed(noback, runs)
    done, halted = rows["done"], rows["halted"]
    assert (done["task"], done["model"], done["method"]) == ("reviews", str(tiny_folder), "full/two_sided/sgd")
    assert (done["steps"], done["planned"], done["state"]) == (4, 4, "finished")
    assert 0 <= done["before"] <= 1
    assert 0 <= done["after"] <= 1
    assert done["verdict"]
    assert done["bytes"] == sum(path.stat().st_size for path in (runs / "done").rglob("*") if path.is_file())
    assert (halted["steps"], halted["planned"], halted["state"], halted["after"]) == (2, 4, "stopped", None)


def test_a_damaged_or_foreign_folder_is_a_sentence(runs, noback):
    rows = listed(noback, runs)
    assert "is damaged: its checksum does not fit" in rows["harmed"]["note"]
    assert "is no run folder" in rows["foreign"]["note"]
    code, out, err = noback("runs", runs)
    assert (code, "Traceback" in out + err) == (0, False)
    assert " ".join(out.splitlines()[0].split()) == "run task model method steps before after verdict size"
    assert any(line.startswith(f"{runs / 'harmed'}: record") for line in out.splitlines())


def test_the_newest_run_is_last(runs, noback):
    for name, began in (("done", 200), ("halted", 100)):
        path = runs / name / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        told = [{**line, "time": began} if "time" in line else line for line in lines]
        path.write_text("".join(json.dumps(line) + "\n" for line in told))
    order = [name for name in listed(noback, runs) if name in ("done", "halted")]
    assert order == ["halted", "done"]


def test_a_link_is_not_followed_and_one_run_can_be_named(runs, noback, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link").symlink_to(runs / "done")
    assert listed(noback, tmp_path / "other") == {}
    assert list(listed(noback, runs / "done")) == ["done"]
    code, _, err = noback("runs", tmp_path / "nowhere")
    assert (code, "is no folder" in err) == (2, True)


def test_listing_needs_no_torch(runs):
    script = (
        "import sys; from noback.cli.main import main; code = main(['runs', sys.argv[1]]); "
        "sys.exit(code or int('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(runs)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
