"""Which kind of server answers at an address."""

from __future__ import annotations

from collections.abc import Sequence

from noback.engines.servers.server import About, Away, Refused, Server
from noback.errors import InputError


async def found_at(servers: Sequence[Server]) -> tuple[Server, About]:
    """Of the kinds that could be at an address, the one that is, and what it says of itself."""
    refused = []
    for server in servers:
        try:
            return server, await server.about()
        except BaseException as error:
            await server.close()
            if isinstance(error, Away):
                raise InputError(str(error)) from None
            if not isinstance(error, Refused):
                raise
            refused.append(error)
    keys = [error for error in refused if "asks for a key" in str(error)]
    if keys:
        raise keys[0]
    kinds = " nor ".join(server.kind for server in servers)
    raise InputError(f"{servers[0].url} answers, and is neither {kinds}: {'; '.join(map(str, refused))}")
