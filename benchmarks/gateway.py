"""A chat through RagBandit, LiteLLM's proxy, Portkey's gateway and a bare relay, in front of one model server.

    python -m benchmarks.gateway --beside VENV --portkey FOLDER

VENV has litellm[proxy], FOLDER the npm package @portkey-ai/gateway. The relay commits a row to SQLite before and after
the call (WAL, synchronous=FULL): the least that a gateway costs that loses nothing. LiteLLM and Portkey store nothing.
All servers run at once, and take turns in blocks, so that a busy machine slows each of them alike. Rates are of callers
that each wait for their reply before they ask again. `upstream` and `relay` are also run as processes of their own.
--calls prints instead how many calls of functions an answer costs, which does not depend on the machine.
"""

import argparse
import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from benchmarks.calls import measured as measured_calls, print_calls
from benchmarks.figures import machine, percentiles
from benchmarks.litellm_proxy import LITELLM_ENVIRONMENT, litellm_command
from benchmarks.service_process import environment, free_port

WORDS: Final = [f"word{number} " for number in range(20)]
USAGE: Final = {"prompt_tokens": 20, "completion_tokens": 20, "total_tokens": 40}
#: chats of each server in a row, and rows; callers at once, of which some are printed, and their chats
CHATS, BLOCKS, CALLERS, PRINTED, CROWD = 40, 5, (1, 2, 4, 8, 16, 32, 64), (1, 16, 32, 64), 256
#: limits of the p99 that a server adds, milliseconds: the highest rate below each of them is printed
LIMITS_MS: Final = (10, 50, 100)
#: headers of every request; `servers` adds Portkey's target
HEADERS: Final = {"authorization": "Bearer any", "x-portkey-provider": "openai"}
#: servers whose streams are measured; Portkey's fail on Node 20
STREAMED: Final = ("upstream", "relay", "ragbandit", "litellm")
#: longest start of a server, seconds
START_S: Final = 180.0


async def _model(request: Request) -> Response:
    """A model that replies at once."""
    sent = await request.json()
    head = {"id": "x", "created": 1, "model": sent["model"]}
    if not sent.get("stream"):
        choice = {"index": 0, "message": {"role": "assistant", "content": "".join(WORDS)}, "finish_reason": "stop"}
        return JSONResponse({**head, "object": "chat.completion", "choices": [choice], "usage": USAGE})

    async def events() -> Any:
        for delta, finish in [*(({"content": word}, None) for word in WORDS), ({}, "stop")]:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            yield f"data: {json.dumps({**head, 'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"
        yield f"data: {json.dumps({**head, 'object': 'chat.completion.chunk', 'choices': [], 'usage': USAGE})}\n\n"
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


upstream = Starlette(routes=[Route("/v1/chat/completions", _model, methods=["POST"])])


class _Relay:
    """Passes a chat on, with a durable row before it and after it."""

    def __init__(self) -> None:
        self._client: httpx.AsyncClient | None = None
        self._writer = ThreadPoolExecutor(1)
        self._rows: sqlite3.Connection | None = None

    def _commit(self) -> None:
        if self._rows is None:
            self._rows = sqlite3.connect(os.environ["ROWS"], isolation_level=None)
            self._rows.execute("pragma journal_mode=wal")
            self._rows.execute("pragma synchronous=full")
            self._rows.execute("create table if not exists rows(body text)")
        self._rows.execute("insert into rows values(?)", ("x" * 800,))

    async def chat(self, request: Request) -> Response:
        """The reply of the model server."""
        body, loop = await request.body(), asyncio.get_running_loop()
        # The model server closes connections that are idle for 5 s.
        self._client = self._client or httpx.AsyncClient(timeout=60, limits=httpx.Limits(keepalive_expiry=2.0))
        await loop.run_in_executor(self._writer, self._commit)
        sent = self._client.build_request(
            "POST", os.environ["UPSTREAM"], content=body, headers={"content-type": "application/json"}
        )
        reply = await self._client.send(sent, stream=True)
        if json.loads(body).get("stream"):

            async def pieces() -> Any:
                async for piece in reply.aiter_raw():
                    yield piece
                await reply.aclose()
                await loop.run_in_executor(self._writer, self._commit)

            return StreamingResponse(pieces(), media_type="text/event-stream")
        whole = await reply.aread()
        await loop.run_in_executor(self._writer, self._commit)
        return Response(whole, media_type="application/json")


relay = Starlette(routes=[Route("/v1/chat/completions", _Relay().chat, methods=["POST"])])


@contextmanager
def servers(
    litellm: Path | None, *, portkey: Path | None, encoder: str, database: str | None, streams: bool
) -> Iterator[dict[str, tuple[str, int]]]:
    """Server -> URL of its chats and its process.

    litellm, portkey: the folders of their packages; None if they are not measured. database: URL of RagBandit's store;
    None is SQLite. streams: whether RagBandit asks the model for a stream even if the caller wants a whole reply.
    """
    ports = {name: free_port() for name in ("upstream", "relay", "ragbandit", "litellm", "portkey")}
    urls = {name: f"http://127.0.0.1:{port}/v1/chat/completions" for name, port in ports.items()}
    with tempfile.TemporaryDirectory() as folder:
        started: dict[str, subprocess.Popen[bytes]] = {}

        def start(name: str, *command: str, **more: str) -> None:
            with Path(folder, f"{name}.log").open("wb") as log:
                environ = environment() | {"OPENAI_API_KEY": "any", **more}
                started[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environ, start_new_session=True)

        model = f"http://127.0.0.1:{ports['upstream']}/v1"
        uvicorn = (sys.executable, "-m", "uvicorn", "--log-level", "warning", "--port")
        start("upstream", *uvicorn, str(ports["upstream"]), "benchmarks.gateway:upstream")
        rows = {"ROWS": str(Path(folder, "rows.db")), "UPSTREAM": urls["upstream"]}
        start("relay", *uvicorn, str(ports["relay"]), "benchmarks.gateway:relay", **rows)
        config = Path(folder, "ragbandit.yaml")
        settings = _settings(model, folder=folder, port=ports["ragbandit"], encoder=encoder, streams=streams)
        config.write_text(yaml.safe_dump(settings))
        store = {} if database is None else {"DATABASE_URL": database}
        if database is not None:
            migrate = (sys.executable, "-m", "ragbandit", "migrate", "--config", str(config))
            subprocess.run(migrate, env=environment() | store, stdout=subprocess.DEVNULL, check=True)
        start("ragbandit", sys.executable, "-m", "ragbandit", "up", "--config", str(config), **store)
        if litellm is not None:
            models = [_upstream(name, url=model) for name in ("small", "large")]
            command = litellm_command(litellm, models=models, folder=Path(folder), port=ports["litellm"])
            start("litellm", *command, **LITELLM_ENVIRONMENT)
        if portkey is not None:
            script = portkey / "node_modules/@portkey-ai/gateway/build/start-server.js"
            start("portkey", "node", str(script), "--headless", f"--port={ports['portkey']}")
            HEADERS["x-portkey-custom-host"] = model
        try:
            yield {name: (urls[name], process.pid) for name, process in started.items()}
        finally:
            for process in started.values():
                os.killpg(process.pid, signal.SIGTERM)
            for process in started.values():
                process.wait(30)


def _upstream(name: str, *, url: str) -> dict[str, str]:
    return {"model": f"openai/{name}", "api_base": url, "api_key": "any"}


def _settings(url: str, *, folder: str, port: int, encoder: str, streams: bool) -> dict[str, Any]:
    prices, options = {"input": 1.0, "output": 2.0}, {"base_url": url, "stream": streams or "caller"}
    generators = {
        name: {"name": "openai", "model": name, "token_prices": prices, "openai": options}
        for name in ("small", "large")
    }
    arms = {name: {"class": "model", "generator": name} for name in generators}
    model = {"encoder": {"model": "hashing"}} if encoder == "hashing" else {}
    return {"data_dir": f"{folder}/data", "server": {"port": port}, "generators": generators, "arms": arms, **model}


class _Times:
    """Milliseconds of whole replies, first pieces and gaps between pieces of one server."""

    def __init__(self) -> None:
        self.whole: list[float] = []
        self.first: list[float] = []
        self.gaps: list[float] = []
        #: callers -> chats a second, p50 and p99 of their milliseconds, and p99 of the gaps between pieces
        self.crowd: dict[int, tuple[float, float, float, float]] = {}


def _body(text: str, *, stream: bool) -> dict[str, Any]:
    return {"model": "auto", "stream": stream, "messages": [{"role": "user", "content": f"What is {text}?"}]}


async def _whole(client: httpx.AsyncClient, url: str, *, text: str) -> float:
    began = time.perf_counter()
    reply = await client.post(url, json=_body(text, stream=False), headers=HEADERS)
    reply.raise_for_status()
    assert reply.json()["choices"][0]["message"]["content"]
    return (time.perf_counter() - began) * 1000


async def _stream(client: httpx.AsyncClient, url: str, *, text: str, times: _Times) -> None:
    began = last = time.perf_counter()
    count = 0
    asks = client.stream("POST", url, json=_body(text, stream=True), headers=HEADERS)
    async with asks as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if line.startswith("data: {") and "word" in line:
                now = time.perf_counter()
                (times.gaps if count else times.first).append((now - last) * 1000)
                count, last = count + 1, now
    assert count, f"{url} sent no piece in {time.perf_counter() - began:.1f} s"


async def _chats(client: httpx.AsyncClient, url: str, *, times: _Times, block: int, streams: bool) -> None:
    for number in range(CHATS):
        times.whole.append(await _whole(client, url, text=f"{number} of {block}"))
        if streams:
            await _stream(client, url, text=f"piece {number} of {block}", times=times)


async def _crowd(
    client: httpx.AsyncClient, url: str, *, callers: int, streams: bool
) -> tuple[float, float, float, float]:
    """Chats a second, p50 and p99 of whole chats, and p99 of the gaps between pieces of streams."""
    room, streamed = asyncio.Semaphore(callers), _Times()

    async def one(text: str, *, stream: bool = False) -> float:
        async with room:
            if stream:
                await _stream(client, url, text=text, times=streamed)
                return 0.0
            return await _whole(client, url, text=text)

    await asyncio.gather(*(one(f"warm-up {number} of {callers}") for number in range(CROWD // 4)))
    began = time.perf_counter()
    spans = await asyncio.gather(*(one(f"number {number} of {callers}") for number in range(CROWD)))
    rate = CROWD / (time.perf_counter() - began)
    await asyncio.gather(*(one(f"stream {n} of {callers}", stream=True) for n in range(CROWD // 4 if streams else 0)))
    return rate, *percentiles(spans), percentiles(streamed.gaps or [0.0])[1]


async def measured(urls: Mapping[str, str]) -> dict[str, _Times]:
    """The times of every server, measured in turns."""
    found = {name: _Times() for name in urls}
    # Connections idle for 5 s may be closed by a server just as the next request is sent.
    limits = httpx.Limits(max_connections=100, keepalive_expiry=2.0)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:
        for name, url in urls.items():
            give_up = time.monotonic() + START_S
            while True:
                try:
                    await _whole(client, url, text="the start")
                    break
                except httpx.HTTPError:
                    if time.monotonic() > give_up:
                        raise RuntimeError(f"{name} did not start within {START_S:g} s") from None
                    await asyncio.sleep(0.5)
        for block in range(BLOCKS + 1):  # the first one warms up
            for name, url in urls.items():
                await _chats(
                    client, url, times=found[name] if block else _Times(), block=block, streams=name in STREAMED
                )
        for callers in CALLERS:
            for name, url in urls.items():
                found[name].crowd[callers] = await _crowd(client, url, callers=callers, streams=name in STREAMED)
    return found


def _memory(process: int) -> float:
    """MiB of a process and its child processes; shared pages count by their share."""
    total, found = 0, [process]
    for number in found:  # grows by the children
        with suppress(OSError):
            found += map(int, Path(f"/proc/{number}/task/{number}/children").read_text().split())
            rows = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
            total += sum(int(row.split()[1]) for row in rows if row.startswith("Pss:"))
    return total / 1024


def run(
    litellm: Path | None, *, portkey: Path | None, encoder: str, database: str | None = None, streams: bool = True
) -> None:
    """Print the tables. litellm, portkey, database, streams: see `servers`."""
    with servers(litellm, portkey=portkey, encoder=encoder, database=database, streams=streams) as started:
        found = asyncio.run(measured({name: url for name, (url, _) in started.items()}))
        memory = {name: _memory(process) for name, (_, process) in started.items()}
    base, store = found["upstream"], "SQLite" if database is None else "PostgreSQL"
    asked = "" if streams else ", openai.stream: caller"
    print(f"a chat through a gateway, encoder {encoder}, {store}{asked}; ms added to the model server's own time")
    print(f"{'':10}  whole p50     p99  first p50     p99  gap p99    MiB   chats a second below p99 of {LIMITS_MS} ms")
    for name, times in found.items():
        added = [
            percentiles(getattr(times, kind) or [0.0])[place]
            - (0 if name == "upstream" else percentiles(getattr(base, kind))[place])
            for kind in ("whole", "first")
            for place in (0, 1)
        ]
        rates = "  ".join(f"{_rate_below(times, base=base, limit_ms=limit):5.0f}" for limit in LIMITS_MS)
        print(
            f"{name:10} {added[0]:10.1f} {added[1]:7.1f} {added[2]:10.1f} {added[3]:7.1f} "
            f"{percentiles(times.gaps or [0.0])[1]:8.2f} {memory[name]:6.0f}   {rates}"
        )
    print(f"{'':10}" + "".join(f"  {f'{callers} callers: /s, p50, p99, gap':>32}" for callers in PRINTED))
    for name, times in found.items():
        cells = []
        for callers in PRINTED:
            rate, half, late, gap = times.crowd[callers]
            own = (0.0, 0.0) if name == "upstream" else base.crowd[callers][1:3]
            cells.append(f"{rate:8.0f} {half - own[0]:7.1f} {late - own[1]:7.1f} {gap:7.2f}")
        print(f"{name:10}" + "".join(f"  {cell:>32}" for cell in cells))
    for name in sorted(found.keys() & {"litellm", "portkey"}):
        _print_ratios(name, found["ragbandit"], found[name], base=base)
    print(machine())


def run_calls() -> None:
    """Print the calls of functions that an answer costs, see `benchmarks.calls`."""
    port = free_port()
    command = (sys.executable, "-m", "uvicorn", "--log-level", "warning", "--port", str(port))
    model = subprocess.Popen([*command, "benchmarks.gateway:upstream"], env=environment())
    url = f"http://127.0.0.1:{port}/v1"
    try:
        print_calls(
            measured_calls(
                lambda folder, port: _settings(url, folder=folder, port=port, encoder="hashing", streams=True),
                environ={"OPENAI_API_KEY": "any"},
            )
        )
    finally:
        model.terminate()
        model.wait(30)


def _rate_below(times: _Times, *, base: _Times, limit_ms: float) -> float:
    """The highest rate of chats whose p99 exceeds the model server's by less than limit_ms; 0 if there is none."""
    rates = (rate for n, (rate, _, late, _) in times.crowd.items() if late - base.crowd[n][2] < limit_ms)
    return max(rates, default=0.0)


def _print_ratios(name: str, ours: _Times, theirs: _Times, *, base: _Times) -> None:
    """Print what RagBandit adds in terms of what another gateway adds."""
    cells = []
    for kind, what in (("whole", "whole"), ("first", "first piece")):
        times, own = getattr(theirs, kind), percentiles(getattr(base, kind))[0]
        if times:
            cells.append(f"{what} {(percentiles(getattr(ours, kind))[0] - own) / (percentiles(times)[0] - own):.2f}")
    rates = ", ".join(f"at {n} {ours.crowd[n][0] / theirs.crowd[n][0]:.2f}" for n in PRINTED)
    print(f"RagBandit / {name}: {', '.join(cells)}, chats a second {rates}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__)
    parser.add_argument("--beside", type=Path, help="a virtual environment with litellm[proxy], to measure as well")
    parser.add_argument("--portkey", type=Path, help="a folder with @portkey-ai/gateway, to measure as well")
    parser.add_argument("--encoder", choices=("hashing", "distilbert"), default="hashing")
    parser.add_argument("--postgres", action="store_true", help="RagBandit stores in a PostgreSQL that is started here")
    parser.add_argument("--network-ms", type=float, default=0.0, help="milliseconds to that PostgreSQL, each way")
    parser.add_argument("--stream-as-caller", action="store_true", help="RagBandit has `openai.stream: caller`")
    parser.add_argument("--calls", action="store_true", help="only count the calls of functions, at each door")
    asked = parser.parse_args()
    if asked.calls:
        run_calls()
        return
    with ExitStack() as stack:
        database = None
        if asked.postgres:
            from tests.support.servers.postgres_server import PostgresServer  # a package that only tests need

            server = PostgresServer(durable=True)
            stack.callback(server.stop)
            server.start()
            database = server.url(server.new_database())
            if asked.network_ms:
                port, socket = free_port(), str(server.folder / ".s.PGSQL.5432")
                command = [sys.executable, "-m", "benchmarks.slow_network", str(port), socket, str(asked.network_ms)]
                stack.callback(stack.enter_context(subprocess.Popen(command)).terminate)
                time.sleep(1.0)
                database = f"{database.partition('?')[0]}?host=127.0.0.1&port={port}&sslmode=disable&gssencmode=disable"
                print(f"PostgreSQL is {asked.network_ms:g} ms away, each way")
        streams = not asked.stream_as_caller
        run(asked.beside, portkey=asked.portkey, encoder=asked.encoder, database=database, streams=streams)


if __name__ == "__main__":
    main()
