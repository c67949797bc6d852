"""What a step costs on a CUDA device: the cases of `noback bench`, each in a process of its own.

python benchmarks/gpu.py                         every case; writes benchmarks/results/gpu.json after each
python benchmarks/gpu.py --only opt-13b          the cases of a shape
python benchmarks/gpu.py --commit 1a2b3c4        where the working tree is no git checkout
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "gpu.json"
CASES = (
    "--shape roberta-large --dtype bfloat16 --batch 64 --tokens 48",
    "--shape roberta-large --dtype float32 --tf32 --batch 64 --tokens 48",
    "--shape opt-1.3b --dtype bfloat16 --batch 16 --tokens 48",
    "--shape opt-13b --dtype bfloat16 --batch 16 --tokens 48 --without compiled",
    "--shape opt-13b --dtype bfloat16 --batch 16 --tokens 400 --without adam,compiled",
    "--shape opt-13b --dtype bfloat16 --batch 16 --tokens 48 --adapter lora --without compiled",
    "--shape llama-8b --dtype bfloat16 --batch 16 --tokens 48 --without adam,compiled",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="WORD", default="", help="the cases whose line holds this word")
    parser.add_argument("--commit", help="the commit to name in the results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", default="20")
    parser.add_argument("--without", default="", metavar="NAMES", help="leave these contenders out of every case")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    for line in (line for line in CASES if arguments.only in line):
        without = [*re.findall(r"--without (\S+)", line), *filter(None, [arguments.without])]
        flags = [*re.sub(r" --without \S+", "", line).split(), *(["--without", ",".join(without)] if without else [])]
        found = run([*flags, "--device", arguments.device, "--repeats", arguments.repeats])
        machine = found.pop("machine", None)
        if machine is not None and arguments.commit:
            machine["commit"] = arguments.commit
        add(arguments.out, machine, {"command": f"noback bench {line}", **found})


def add(out: Path, machine: dict | None, case: dict) -> None:
    """Put a case into the results file, in place of an earlier one; figures from elsewhere leave it."""
    results = json.loads(out.read_text()) if out.exists() else {"machine": None, "cases": []}
    if machine is not None and results["machine"] is not None:
        before, now = ({**one, "date": None} for one in (results["machine"], machine))
        results["cases"] = results["cases"] if before == now else []
    kept = [one for one in results["cases"] if one["command"] != case["command"]]
    order = [f"noback bench {line}" for line in CASES]
    cases = sorted([*kept, case], key=lambda one: order.index(one["command"]))
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({"machine": machine or results["machine"], "cases": cases}, indent=2) + "\n")


def run(flags: list[str]) -> dict:
    """A case's figures, printed as its table; one that failed says why and the next goes on."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench.json"
        command = [sys.executable, "-m", "noback", "bench", *flags, "--out", str(out)]
        print("$ noback bench", *flags, flush=True)
        ran = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if ran.returncode:
            lines = ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"]
            print(ran.stderr, file=sys.stderr, flush=True)
            return {"gap": lines[-1]}
        return json.loads(out.read_text())


if __name__ == "__main__":
    main()
