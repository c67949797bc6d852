"""Real servers for tests: started on a free loopback port, waited for, and ended with everything they left behind.

By hand: `python -m tests.servers.starting sglang MODEL_FOLDER --max-lora-rank 8`; it prints the address, and ends with
the server when Enter or Ctrl-C is pressed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
SHARED_MEMORY = Path("/dev/shm")
READY_WITHIN = 300  # seconds; a server is ready after 25 to 70 on two cores
COMMON = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
VARIABLES = {
    "sglang": {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(HERE / "shim")},
    "vllm": {
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_NO_USAGE_STATS": "1",
    },
}
# What makes a server small, and lets it run without a GPU; what a test is about comes as its own flags.
FLAGS = {
    "sglang": (
        "-m sglang.launch_server --device cpu --attention-backend torch_native --sampling-backend pytorch "
        "--grammar-backend none --disable-cuda-graph --disable-overlap-schedule --max-total-tokens 20000 "
        "--mem-fraction-static 0.2"
    ),
    "vllm": "-m vllm.entrypoints.openai.api_server --enforce-eager --block-size 32 --max-model-len 512",
}
LORA = {
    "sglang": (
        "--enable-lora --lora-backend torch_native --max-lora-rank 8 --lora-target-modules q_proj v_proj "
        "--max-loras-per-batch 3"
    ),
    "vllm": "--enable-lora --max-lora-rank 8 --max-loras 2",
}


class Server:
    """A server's process group and address."""

    def __init__(
        self,
        engine: str,
        model: Path,
        flags: Sequence[str] = (),
        *,
        port: int | None = None,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Starts it; `flags` and `variables` come after those that every test server has, so theirs win."""
        self.engine, self.model, self.flags, self.variables = engine, model, list(flags), dict(variables)
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = model.parent / f"{engine}-{self.port}.log"
        self._shared = _shared_memory()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=model.parent,
                env={**_variables(engine), **variables}, start_new_session=True,
            )  # fmt: skip

    @property
    def group(self) -> int:
        """The number of its process group, which signals go to."""
        return self._process.pid

    def command(self) -> list[str]:
        """The command line that was started."""
        place = ["--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32"]
        model = ["--model-path" if self.engine == "sglang" else "--model", str(self.model)]
        return [str(python_of(self.engine)), *FLAGS[self.engine].split(), *model, *place, *self.flags]

    def wait(self) -> Server:
        """Return when it answers; a server that ended or is not ready in time is an error that shows its log."""
        deadline = time.monotonic() + READY_WITHIN
        while not _answers(f"{self.url}/health"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                state = "is not ready" if self._process.returncode is None else f"ended: {self._process.returncode}"
                raise RuntimeError(f"{self.engine} {state}; the end of its log:\n{self.log.read_text()[-6000:]}")
            time.sleep(0.2)  # a process that is not ours tells nobody that it is ready
        return self

    def kill(self) -> None:
        """End the whole group at once, as a power cut would, and remove what it leaves in shared memory."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for path in _shared_memory() - self._shared:
            path.unlink(missing_ok=True)

    def again(self) -> Server:
        """Another server with the same flags at the same address; not waited for."""
        return Server(self.engine, self.model, self.flags, port=self.port, variables=self.variables)

    def post(self, path: str, body: dict) -> tuple[int, object]:
        """A plain request, as any client could send it: (status, reply)."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, _reply_of(reply.read())
        except urllib.error.HTTPError as error:
            return error.code, _reply_of(error.read())

    def get(self, path: str) -> object:
        """What the server says at a path."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=60) as reply:
            return _reply_of(reply.read())


@contextmanager
def serving(
    engine: str, model: Path, *flags: str, variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Server]:
    """A server that is ready, and gone afterwards whatever happens."""
    server = Server(engine, model, flags, variables=variables)
    try:
        yield server.wait()
    finally:
        server.kill()


def lora_flags(engine: str, *, tp: int = 1) -> list[str]:
    """The flags of a server that takes adapters of rank 8 on q and v, two at a time."""
    parallel = {"sglang": "--tp", "vllm": "--tensor-parallel-size"}[engine]
    return [*LORA[engine].split(), *([parallel, str(tp)] if tp > 1 else [])]


def python_of(engine: str) -> Path:
    """The interpreter of an engine's own environment: `make servers` makes both."""
    environment = os.environ.get(f"NOBACK_{engine.upper()}", CHECKOUT / f".venv-{engine}")
    python = Path(environment) / "bin" / "python"
    if not python.exists():
        raise RuntimeError(f"there is no {python}; make the environments with: make servers")
    return python


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _variables(engine: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))}
    binding = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"} if engine == "sglang" else {}
    return {**kept, **COMMON, **VARIABLES[engine], **binding}


def _shared_memory() -> set[Path]:
    """What SGLang leaves when it is killed; other programs' files are not ours to remove."""
    return {path for pattern in ("sglang_loads_*", "sgl_shm_mq_*") for path in SHARED_MEMORY.glob(pattern)}


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def _reply_of(text: bytes) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text.decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=FLAGS)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--no-lora", action="store_true")
    known, more = parser.parse_known_args()
    flags = [] if known.no_lora else lora_flags(known.engine, tp=known.tp)
    with serving(known.engine, known.model.resolve(), *flags, *more) as server:
        print(server.url, flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        sys.stdin.readline()


if __name__ == "__main__":
    main()
