"""A relay from a port to a Unix socket that delays what passes, as a network does."""

import argparse
import asyncio
from contextlib import suppress


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    later = asyncio.get_running_loop().call_later
    with suppress(OSError):
        while data := await reader.read(65536):
            later(delay_s, writer.write, data)
    later(delay_s, writer.close)


async def _relay(port: int, socket: str, delay_s: float) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reads, writes = await asyncio.open_unix_connection(socket)
        await asyncio.gather(_pass(reader, writes, delay_s), _pass(reads, writer, delay_s))

    await (await asyncio.start_server(accept, "127.0.0.1", port)).serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_network", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("socket", help="path of the Unix socket")
    parser.add_argument("milliseconds", type=float)
    asked = parser.parse_args()
    asyncio.run(_relay(asked.port, asked.socket, asked.milliseconds / 1000))
