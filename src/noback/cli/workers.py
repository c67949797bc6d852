"""--workers: a run in several processes of this machine. Under torchrun the processes are there already."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from noback.cli.commands import whole_number
from noback.errors import NobackError

_MOST = 1024
_PATIENCE = 20.0  # seconds for a worker to end by itself after rank 0 has


def add_workers(parser: argparse.ArgumentParser) -> None:
    """--workers, --divide and --tensor-parallel."""
    parser.add_argument(
        "--workers", metavar="N",
        help="processes on this machine that share each step, all making the same moves (default 1). Over several "
        "machines: torchrun --nproc-per-node N -m noback train ...",
    )  # fmt: skip
    parser.add_argument(
        "--divide", choices=("examples", "points", "both"), default="examples",
        help="what workers share: the examples of a batch, its perturbed points, or both (default examples)",
    )  # fmt: skip
    parser.add_argument(
        "--tensor-parallel", metavar="N",
        help="workers that hold one model together, each a part of it, where it is too large for one (default 1); "
        "N divides the number of workers, and of the model's attention heads",
    )  # fmt: skip


def shared_among(arguments: argparse.Namespace) -> dict[str, Any]:
    """How the work is shared, as `train` and `resume` take it."""
    together = whole_number("--tensor-parallel", arguments.tensor_parallel, _MOST) or 1
    return {"divide": arguments.divide, "tensor_parallel": together}


@contextmanager
def working(arguments: argparse.Namespace) -> Iterator[None]:
    """Within, the other workers that --workers asks for take part; a world that is there already is left as it is."""
    count = whole_number("--workers", arguments.workers, _MOST)
    if count is None or "WORLD_SIZE" in os.environ:
        yield
        return
    threads = max((os.cpu_count() or 1) // count, 1)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(count)}
    common["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # that a rank has gone is said once, in a sentence
    if count > 1:
        common["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(threads))
    others = [_Worker(rank, arguments.command_line, common) for rank in range(1, count)]
    before = {name: os.environ.get(name) for name in (*common, "RANK")}
    os.environ.update(common, RANK="0")
    if count > 1:
        _use_threads(int(common["OMP_NUM_THREADS"]))
    try:
        yield
    except NobackError as error:
        raise _with_causes(error, others) from error
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        for other in others:
            other.end()


class _Worker:
    """Another rank: the same command in a process of its own, whose words are kept for the case that it dies.

    It has a session of its own, so that Ctrl-C reaches rank 0 alone; without rank 0 it ends by itself.
    """

    def __init__(self, rank: int, words: list[str], common: dict[str, str]) -> None:
        self._rank, self._said = rank, tempfile.TemporaryFile()  # noqa: SIM115 (closed at its end)
        self._process = subprocess.Popen(  # noqa: S603 (the command that this process runs)
            [sys.executable, "-m", "noback", *words],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL, stderr=self._said, start_new_session=True,
        )  # fmt: skip

    def end(self) -> None:
        """Wait for it a while, then kill it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)
        self._process.kill()
        self._process.wait()
        self._said.close()

    def cause(self) -> str | None:
        """Why it is no longer there; None where it is, or has only lost the others itself."""
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(1.0)
            if code < 0:
                return f"worker {self._rank} was killed by signal {-code}"
            self._said.seek(0)
            said = [line for line in self._said.read().decode(errors="replace").splitlines() if line.strip()]
            last = [line for line in said if line.startswith("noback: ")][-1:] or said[-1:]
            if code and last and "went away" not in last[0]:
                return f"worker {self._rank} ended: {last[0].removeprefix('noback: ')}"
        return None


def _use_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)


def _with_causes(error: NobackError, others: list[_Worker]) -> NobackError:
    """The error, with what became of workers that have died."""
    from noback.distributed import LostRank

    if not isinstance(error, LostRank):
        return error
    causes = [cause for cause in (other.cause() for other in others) if cause]
    return LostRank(f"{'; '.join(causes)}: {error}") if causes else error


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port
