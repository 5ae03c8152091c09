"""A redis-server that is reached by TLS only, with a certificate of an authority of its own."""

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from benchmarks.service_process import free_port

OPENSSL = shutil.which("openssl")


def make_authority(folder: Path) -> Path:
    """Make an authority, ca.pem, and the certificate server.pem with server.key for 127.0.0.1. Returns ca.pem."""

    def openssl(*arguments: str) -> None:
        command = [str(OPENSSL), *arguments, "-days", "2"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=30)

    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature")
    openssl(*new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=An authority of our own", *usage)
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    not_ca = ("-addext", "basicConstraints=critical,CA:FALSE")
    openssl(*new, "-keyout", "server.key", "-out", "server.pem", "-subj", "/CN=redis", *signed, *not_ca)
    return folder / "ca.pem"


@contextmanager
def by_server(folder: Path) -> Iterator[int | None]:
    """Run a redis-server with TLS on the certificates of a folder. Yields its port; None if none here has TLS."""
    server = shutil.which("redis-server")
    if server is None:
        yield None
        return
    port = free_port()
    files = {"cert": "server.pem", "key": "server.key", "ca-cert": "ca.pem"}
    options = [word for name, file in files.items() for word in (f"--tls-{name}-file", str(folder / file))]
    command = [server, "--port", "0", "--tls-port", str(port), *options, "--tls-auth-clients", "no", "--save", ""]
    process = subprocess.Popen([*command, "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL, cwd=folder)
    try:
        yield port if _listens(port, process) else None
    finally:
        process.terminate()
        process.wait(10)


def _listens(port: int, process: "subprocess.Popen[bytes]") -> bool:
    """Wait until the process listens. Returns False if it has ended, as one that was built without TLS."""
    give_up = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < give_up:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        time.sleep(0.02)
    return False


@contextmanager
def by_terminator(redis: Path, folder: Path) -> Iterator[int]:
    """Put a TLS terminator in front of the Unix socket of a redis-server, as hosting companies do. Yields its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    ports: list[int] = []
    loop, ends = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with await asyncio.start_server(partial(_pass_on, redis), "127.0.0.1", 0, ssl=context) as server:
            ports.append(server.sockets[0].getsockname()[1])
            await ends.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        while not ports:
            time.sleep(0.01)
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(ends.set)
        thread.join(10)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


async def _pass_on(redis: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    there, back = await asyncio.open_unix_connection(str(redis))
    try:
        await asyncio.gather(_copy(reader, back), _copy(there, writer))
    finally:
        writer.close()
        back.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()
    with suppress(OSError):
        target.close()
