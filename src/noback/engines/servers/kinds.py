"""The kinds of servers that there are, as the engines' options name them."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from noback.engines.options import AnyEngine
from noback.engines.servers.server import Server
from noback.options import build, one_of


def servers_at(address: str, kind: str | None = None, told: Mapping[str, Any] | None = None) -> list[Server]:
    """What may be at an address: a server of the kind that is named, or of each; `told`: options of engines."""
    kinds: dict[str, Any] = {one.kind: one for one in typing.get_args(AnyEngine) if not one.needs_base}
    if kind is not None:
        one_of("engine", kind, kinds)
    found = []
    for each in [kinds[kind]] if kind else kinds.values():
        known = {item.name for item in fields(each)}
        options = {name: value for name, value in (told or {}).items() if name in known}
        found.append(build(each, {**options, "url": address}, "engine.").servers()[0])
    return found
