"""A loopback server that answers what a real one was recorded to answer."""

from __future__ import annotations

import json
import threading
from collections import defaultdict, deque
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.servers.recording import DATA, without_chance


class Replayed:
    """The address, and what was asked there, in order."""

    def __init__(self, exchanges) -> None:
        self.asked: list[tuple[str, dict | None]] = []
        self._answers = defaultdict(deque)
        for one in exchanges:
            self._answers[_key(one["method"], one["path"], one["body"])].append((one["status"], one["reply"]))

    def answer(self, method, path, body):
        """The next recorded answer to these words; the last one stays."""
        self.asked.append((path, body))
        found = self._answers.get(_key(method, path, without_chance(body)))
        if not found:
            return 418, f"nothing was recorded for {method} {path} {body}"
        return found.popleft() if len(found) > 1 else found[0]


@contextmanager
def replaying(world: str | list, engine: str = "vllm-0.32.0"):
    """Within, a server answers as the one of that name was recorded."""
    exchanges = world if isinstance(world, list) else json.loads((DATA / f"{engine}.json").read_text())[world]
    replayed = Replayed(exchanges)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self):
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, text = replayed.answer(self.command, self.path, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = _do

        def log_message(self, *_):
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    replayed.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield replayed
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _key(method, path, body):
    return method, path, json.dumps(body, sort_keys=True)
