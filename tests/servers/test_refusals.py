"""Servers with which no run can be: one sentence, exit code 2, and no folder."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from noback.cli.main import main
from noback.engines.servers.sglang import Sglang
from noback.engines.servers.vllm import Vllm
from tests.servers.starting import free_port

pytestmark = pytest.mark.server
KINDS = {"sglang": Sglang, "vllm": Vllm}


def refused(engine, url, model, tmp_path, capsys, *more):
    """What is said on stderr of a run that cannot begin."""
    words = ["--model", str(model), "--task", "reviews-causal", "--adapter", "lora", "--steps", "3", "--batch", "4",
             "--set", "adapter.targets=q_proj,v_proj", "--test-limit", "8"]  # fmt: skip
    capsys.readouterr()
    code = main(["train", *words, "--engine", engine, "--url", url, "--out", str(tmp_path / "run"), *more])
    said = capsys.readouterr().err.strip()
    assert code == 2, said
    assert not (tmp_path / "run").exists()
    assert "Traceback" not in said
    return said.splitlines()[-1]


def test_a_version_outside_the_tested_range_is_refused(server, served, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(KINDS[server.engine], "tested", ("0.1", "0.2"))
    said = refused(server.engine, server.url, served, tmp_path, capsys)
    assert f"server {server.url} is {server.engine} 0." in said
    assert "tested with 0.1 to below 0.2" in said
    assert main(["engine", "check", server.url, "--set", "adapter.targets=q_proj,v_proj"]) == 1
    assert "FAIL  version" in capsys.readouterr().out


def without_names(body, model):
    """A request as a proxy passes it on that knows nothing of adapters."""
    if "lora_path" in body and "input_ids" in body:
        return {name: value for name, value in body.items() if name != "lora_path"}
    return body | {"model": model} if "prompt" in body else body


@contextmanager
def passing_on(url, model):
    """The address of a proxy before a server that drops the adapters' names of what is to be scored."""

    class Handler(BaseHTTPRequestHandler):
        def _do(self):
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if data:
                data = json.dumps(without_names(json.loads(data), model)).encode()
            asked = urllib.request.Request(
                f"{url}{self.path}", data or None, {"Content-Type": "application/json"}, method=self.command
            )
            try:
                with urllib.request.urlopen(asked, timeout=60) as reply:
                    status, text = reply.status, reply.read()
            except urllib.error.HTTPError as error:
                status, text = error.code, error.read()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = _do

        def log_message(self, *_):
            """Silent."""

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}"
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()


def test_base_scores_in_place_of_an_adapters_are_found_out_by_the_canary(server, served, tmp_path, capsys):
    with passing_on(server.url, str(server.model)) as url:
        said = refused(server.engine, url, served, tmp_path, capsys)
    assert "gives an adapter's prompts the base model's scores" in said
    assert not [one["id"] for one in server.get("/v1/models")["data"] if one["id"].startswith("noback-")]


def test_a_server_that_stands_still_is_told_within_the_timeout_and_serves_when_it_goes_on(
    server, served, tmp_path, capsys
):
    os.killpg(server.group, signal.SIGSTOP)
    try:
        said = refused(server.engine, server.url, served, tmp_path, capsys, "--timeout", "2")
    finally:
        os.killpg(server.group, signal.SIGCONT)
    assert f"server {server.url} has not answered" in said
    assert "within 2 s; look at its log, or give it longer (--timeout)" in said
    assert server.get("/v1/models")["data"]


@pytest.mark.parametrize("engine", KINDS)
def test_an_address_where_nobody_listens_is_told(engine, served, tmp_path, capsys):
    said = refused(engine, f"http://127.0.0.1:{free_port()}", served, tmp_path, capsys)
    assert "cannot be reached" in said
    assert main(["engine", "check", f"http://127.0.0.1:{free_port()}"]) == 2
    assert "cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize("engine", KINDS)
def test_an_address_that_takes_connections_and_never_answers_is_told(engine, served, tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        said = refused(engine, url, served, tmp_path, capsys, "--timeout", "1")
    assert "within 1 s" in said
