"""The server under other loops and with TLS."""

from __future__ import annotations

import asyncio
import ssl

import httpx
import trustme

from distbench.sim.server import SimServer
from distbench.sim.settings import SimSettings
from tests.sim.servers import FAST, chat, events


async def exchange(server: SimServer, verify: ssl.SSLContext | bool) -> str:
    """Stream one chat."""
    async with httpx.AsyncClient(verify=verify, trust_env=False) as client:
        body = chat(stream=True, max_tokens=20)
        return (await client.post(f"{server.url}/v1/chat/completions", json=body)).text


def test_standard_event_loop_serves_too() -> None:
    """The server does not need uvloop: a test may run it on the loop it has."""

    async def main() -> str:
        async with SimServer(SimSettings(model="tiny", step_time=FAST)) as server:
            return await exchange(server, verify=False)

    assert len(events(asyncio.run(main()))) == 22


def test_tls_serves_the_same_bytes() -> None:
    """With a certificate the URL is https and the stream is whole."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trust = ssl.create_default_context()
    authority.configure_trust(trust)

    async def main() -> str:
        server = SimServer(SimSettings(model="tiny", step_time=FAST))
        async with await server.start(ssl_context=context):
            assert server.url.startswith("https://127.0.0.1:")
            return await exchange(server, verify=trust)

    assert len(events(asyncio.run(main()))) == 22
