"""A relay on loopback that delays what passes it, in each direction, as a network does; a process of its own."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.service_process import environment, free_port


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


@contextmanager
def delayed(socket: Path, *, ms: float) -> Iterator[int]:
    """A port of 127.0.0.1 that leads to the Unix socket, `ms` milliseconds away."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.slow_network", str(port), str(socket), str(ms / 1000)]
    with subprocess.Popen(command, env=environment()) as process:
        time.sleep(1.0)
        try:
            yield port
        finally:
            process.terminate()


if __name__ == "__main__":
    asyncio.run(_relay(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
