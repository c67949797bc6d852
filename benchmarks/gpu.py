"""What a step costs on a CUDA device: the cases of `noback bench`, each in a process of its own.

python benchmarks/gpu.py                         every case; writes benchmarks/results/gpu.json after each
python benchmarks/gpu.py --only opt-13b          the cases of a shape; none of them: --only none
python benchmarks/gpu.py --sst2 FOLDER           then a whole run (whole.py) with SST-2's train and dev files
python benchmarks/gpu.py --noise FILE            then the noise's digests (noise.py) against a CPU's, made before
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

import torch

from noback.bench.machine import machine as described

RESULTS = Path(__file__).parent / "results" / "gpu.json"
CASES = (
    "--shape roberta-large --dtype bfloat16 --batch 64 --tokens 48",
    "--shape roberta-large --dtype float32 --matmul-precision tf32 --batch 64 --tokens 48",
    "--shape opt-1.3b --dtype bfloat16 --batch 16 --tokens 48",
    "--shape opt-13b --dtype bfloat16 --batch 16 --tokens 48 --without compiled",
    "--shape opt-13b --dtype bfloat16 --batch 16 --tokens 400 --without adam,compiled",
    "--shape opt-13b --dtype bfloat16 --batch 16 --tokens 48 --adapter lora --without compiled",
    "--shape opt-13b --dtype bfloat16 --batch 16 --tokens 48 --noise rank1 --without adam,compiled,reference",
    "--shape roberta-large --dtype bfloat16 --batch 64 --tokens 48 --noise rank1 --directions-per example"
    " --without adam,compiled,reference",
    "--shape llama-8b --dtype bfloat16 --batch 16 --tokens 48 --without adam,compiled",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="WORD", default="", help="the cases whose line holds this word")
    parser.add_argument("--commit", help="the commit to name in the results")
    parser.add_argument("--sst2", type=Path, metavar="FOLDER")
    parser.add_argument("--noise", type=Path, metavar="FILE")
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
    summed_up(arguments.out, arguments.only)
    here = described(torch.device(arguments.device)) | ({"commit": arguments.commit} if arguments.commit else {})
    if arguments.sst2:
        flags = ["--data", str(arguments.sst2), "--device", arguments.device]
        put(arguments.out, here, "whole_run", json.loads(script("whole.py", *flags)))
    if arguments.noise:
        flags = ["--device", arguments.device, "--compare", str(arguments.noise)]
        put(arguments.out, here, "noise", {"verdict": script("noise.py", *flags).splitlines()[-1].split()[0]})


def summed_up(out: Path, only: str) -> None:
    """A line a case: noback's step over two plain forwards, and its peak over inference's."""
    for case in (case for case in known(out, None)["cases"] if only in case["command"]):
        found = next((one for one in case.get("contenders", []) if one["contender"] == "noback"), {})
        what = case.get("gap") or found.get("gap")
        figures = f"{found.get('over_forwards')} x forwards, {found.get('over_inference')} x inference's memory"
        print(f"{what or figures}: {case['command']}", flush=True)


def add(out: Path, machine: dict | None, case: dict) -> None:
    """Put a case into the results file, in place of an earlier one."""
    results = known(out, machine)
    kept = [one for one in results["cases"] if one["command"] != case["command"]]
    order = [f"noback bench {line}" for line in CASES]
    put(out, machine, "cases", sorted([*kept, case], key=lambda one: order.index(one["command"])))


def put(out: Path, machine: dict | None, name: str, figures: object) -> None:
    results = known(out, machine)
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({**results, "machine": machine or results["machine"], name: figures}, indent=2) + "\n")


def known(out: Path, machine: dict | None) -> dict:
    """What the results file holds; figures from elsewhere leave it."""
    results = json.loads(out.read_text()) if out.exists() else {"machine": None, "cases": []}
    if machine is not None and results["machine"] is not None:
        before, now = ({**one, "date": None} for one in (results["machine"], machine))
        return results if before == now else {"machine": None, "cases": []}
    return results


def script(name: str, *flags: str) -> str:
    """What another file of this folder prints."""
    print("$ python", name, *flags, flush=True)
    command = [sys.executable, str(Path(__file__).parent / name), *flags]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print(ran.stdout, flush=True)
    if not ran.stdout.strip():
        sys.exit(f"{name} failed with exit code {ran.returncode}")
    return ran.stdout


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
