"""QUIC server that only performs handshakes, or a client that performs one handshake.

    quic.py server ADDRESS PORT CERTIFICATE KEY
    quic.py client ADDRESS PORT VERSION NAME PROTOCOL...

VERSION is 1 or 2. NAME is the server name (SNI), or - for none. The server offers the protocol h3 and
prints "ready" once it accepts clients. Requires aioquic.
"""

import asyncio
import ssl
import sys

from aioquic.asyncio import connect, serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import QuicProtocolVersion


async def server(address, port, certificate, key):
    configuration = QuicConfiguration(is_client=False, alpn_protocols=["h3"])
    configuration.load_cert_chain(certificate, key)
    await serve(address, int(port), configuration=configuration)
    print("ready", flush=True)
    await asyncio.Event().wait()


async def client(address, port, version, name, *protocols):
    configuration = QuicConfiguration(
        alpn_protocols=list(protocols),
        server_name=None if name == "-" else name,
        supported_versions=[QuicProtocolVersion[f"VERSION_{version}"]],
        verify_mode=ssl.CERT_NONE,
    )
    async with connect(address, int(port), configuration=configuration):
        pass


what, *args = sys.argv[1:]
asyncio.run({"server": server, "client": client}[what](*args))
