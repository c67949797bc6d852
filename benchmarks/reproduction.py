"""The grid of examples/table18-mini.toml as a results file, with the machine and how long it was said to take.

python benchmarks/reproduction.py --data DIR                runs it, resumably, in runs/table18-mini
python benchmarks/reproduction.py --done FOLDER --said 81   of a reproduction that has ended; it had said 81 minutes
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

from machine import machine

HERE = Path(__file__).parent
GRID = HERE.parent / "examples" / "table18-mini.toml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="the folder with one folder of data a task")
    parser.add_argument("--done", type=Path, help="the folder of a reproduction that has ended")
    parser.add_argument("--said", type=float, help="the minutes that it had said")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "table18-mini.json")
    arguments = parser.parse_args()
    folder, said = (arguments.done, arguments.said) if arguments.done else run(arguments.data)
    table = json.loads((folder / "reproduction.json").read_text())
    table["grid"]["data"] = "DIR"  # where the data lay says nothing elsewhere
    minutes = table["seconds"] / 60
    time = {"said": said, "taken": round(minutes, 1), "taken_over_said": round(minutes / said, 2) if said else None}
    result = {"machine": machine(), "minutes": time, **table}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print((folder / "table.md").read_text(), json.dumps(time))


def run(data: str) -> tuple[Path, float | None]:
    folder = Path("runs") / "table18-mini"
    command = [sys.executable, "-m", "noback", "reproduce", str(GRID), "--data", data, "--out", str(folder)]
    going = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    said = None
    for line in going.stderr or ():
        print(line, end="", file=sys.stderr)
        found = re.search(r"about (\d+) minutes", line)
        said = said or (float(found[1]) if found else None)
    if going.wait():
        sys.exit(going.returncode)
    return folder, said


if __name__ == "__main__":
    main()
