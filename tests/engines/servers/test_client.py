"""Requests: what is sent again, what is not, and what a person is told."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from noback.engines.servers.client import Client
from noback.engines.servers.server import Away, Refused


class Scripted(Client):
    """A client whose replies are given, in their order; the last one stays."""

    def __init__(self, *replies, **options) -> None:
        super().__init__("http://server:1/", pauses=(0.0, 0.0), **options)
        self._replies, self.sent = list(replies), []

    async def _sent(self, method, path, body, timeout):
        self.sent.append((method, path, body))
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply


def said(status=200, **options):
    return httpx.Response(status, request=httpx.Request("GET", "http://server:1"), **options)


def test_a_reply_is_read_as_json():
    assert asyncio.run(Scripted(said(json={"a": 1})).get("/x")) == {"a": 1}


@pytest.mark.parametrize("first", [httpx.ConnectError("refused"), said(503), said(429, headers={"Retry-After": "0"})])
def test_what_failed_once_is_asked_again(first):
    client = Scripted(first, said(json=2))
    assert asyncio.run(client.post("/x", {}, again=True)) == 2
    assert len(client.sent) == 2


def test_what_must_not_come_twice_is_not_sent_again_when_a_connection_breaks():
    client = Scripted(httpx.ReadError("broken"), said(json=2))
    with pytest.raises(Away, match="cannot be reached"):
        asyncio.run(client.post("/load", {}, again=False))
    assert len(client.sent) == 1


def test_a_server_that_cannot_be_reached_is_named_with_what_to_do():
    client = Scripted(httpx.ConnectError("Connection refused"))
    with pytest.raises(
        Away, match=r"server http://server:1 cannot be reached \(Connection refused\); start it, or .*--url"
    ):
        asyncio.run(client.get("/x"))
    assert len(client.sent) == 3


def test_a_server_that_hangs_is_named_and_not_asked_again():
    client = Scripted(httpx.ReadTimeout("late"), timeout=7)
    with pytest.raises(Away, match=r"has not answered /x within 7 s; .*--timeout"):
        asyncio.run(client.get("/x"))
    assert len(client.sent) == 1


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_server_that_is_not_there_behind_its_proxy_may_come_back(status):
    with pytest.raises(Away, match=str(status)):
        asyncio.run(Scripted(said(status)).get("/x"))


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_asks_for_a_key_says_where_it_goes(status):
    with pytest.raises(Refused, match="NOBACK_SERVER_KEY"):
        asyncio.run(Scripted(said(status)).get("/x"))


def test_what_a_server_refuses_is_told_in_its_words():
    with pytest.raises(Refused, match=r"refuses /x \(400\): no such adapter"):
        asyncio.run(Scripted(said(400, text="no such\n adapter")).get("/x"))


def test_a_page_in_place_of_json_is_refused():
    with pytest.raises(Refused, match="expected JSON"):
        asyncio.run(Scripted(said(text="<html>")).get("/x"))
