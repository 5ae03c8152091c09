"""Chats with a gateway, and what they cost: processor time in turns with the other gateways, times at the client."""

import http.client
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from benchmarks.chat_sizes.cells import Cell
from benchmarks.chat_sizes.conversations import PATHS, Conversation
from benchmarks.chat_sizes.gateways import Gateway, has_ended, log_end
from benchmarks.chat_sizes.model_server import PIECE, Answer
from benchmarks.chat_sizes.processor import processor_ms

#: longest start of a gateway, and under callgrind, seconds
START_S, SLOW_START_S = 120.0, 600.0
#: a block has fewer chats if the model server takes longer than this, milliseconds
_BLOCK_MS: Final = 2_500.0
#: pause before the processor time of a block is read: what happens after a reply belongs to it, seconds
_AFTER_S: Final = 0.08
#: how long the processor time of gateways without a request is measured, seconds
_IDLE_S: Final = 3.0
_REQUEST_S: Final = 300.0
_HEADERS: Final = {"content-type": "application/json", "authorization": "Bearer any", "x-api-key": "any"}


class ChatFailed(RuntimeError):
    """A gateway did not answer as the cell asks."""


@dataclass(kw_only=True, slots=True)
class Block:
    """Chats in a row, milliseconds at the client."""

    walls: list[float] = field(default_factory=list)
    #: delay of the first piece, and of the later ones, after the model server sent it
    first: list[float] = field(default_factory=list)
    later: list[float] = field(default_factory=list)

    def add(self, other: "Block") -> None:
        self.walls += other.walls
        self.first += other.first
        self.later += other.later


@dataclass(kw_only=True, slots=True)
class Measured:
    """A gateway in a cell."""

    cell: Cell
    gateway: str
    #: processor milliseconds a chat of each round, and ratios to the first gateway in the same round
    rounds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    block: Block = field(default_factory=Block)
    #: median of a chat with the model server itself, milliseconds
    own_ms: float = 0.0
    #: millions of instructions a chat, if they were counted
    instructions: float | None = None


def chats_of(cell: Cell, *, most: int) -> int:
    """How many chats of each caller a block has."""
    each = max(1, most // cell.callers)
    if cell.reply_ms * each > _BLOCK_MS:
        each = max(1, int(_BLOCK_MS / cell.reply_ms))
    return max(each, 2) if cell.callers > 1 else each


def talk(gateway: Gateway, *, cell: Cell, name: str, chats: int) -> Block:
    """Ask this many chats of each caller. Raises ChatFailed."""
    made = [Conversation.made(cell, name=f"{name}_{caller}") for caller in range(cell.callers)]
    with ThreadPoolExecutor(cell.callers) as pool:
        blocks = list(pool.map(lambda one: _conversation(gateway, one, chats=chats), made))
    found = Block()
    for block in blocks:
        found.add(block)
    return found


def _conversation(gateway: Gateway, made: Conversation, *, chats: int) -> Block:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=_REQUEST_S)
    block, headers = Block(), _HEADERS | made.headers()
    try:
        for number in range(1, chats + 1):
            answer = _chat(connection, made, headers=headers, block=block)
            if number < chats:
                made.add(answer, number=number)
    except (OSError, http.client.HTTPException, ValueError) as error:
        name = gateway.name or "the model server"
        raise ChatFailed(f"{name}, {made.cell}: {error!r}\n{log_end(gateway)}") from error
    finally:
        connection.close()
    return block


def _chat(
    connection: http.client.HTTPConnection, made: Conversation, *, headers: dict[str, str], block: Block
) -> Answer:
    body, parts, delays = made.body(), list[bytes](), list[float]()
    began = time.perf_counter()
    connection.request("POST", PATHS[made.cell.door], body, headers)
    reply = connection.getresponse()
    if made.cell.form == "whole" or reply.status != 200:
        parts.append(reply.read())
    else:
        tail = b""
        while part := reply.read1(1 << 16):
            now, tail = time.monotonic_ns() / 1e6, tail + part
            parts.append(part)
            found = list(PIECE.finditer(tail))
            delays += [now - int(piece[2]) / 1000 for piece in found]
            tail = tail[found[-1].end() if found else 0 :][-64:]
    block.walls.append((time.perf_counter() - began) * 1000)
    whole = b"".join(parts)
    if reply.status != 200:
        raise ValueError(f"status {reply.status}: {whole[:500]!r}")
    block.first += delays[:1]
    block.later += delays[1 : made.cell.pieces]
    return Answer.read(whole, cell=made.cell)


def await_start(gateway: Gateway, *, cell: Cell) -> None:
    """Wait until a gateway answers a chat. Raises ChatFailed with the end of its log."""
    give_up = time.monotonic() + (START_S if gateway.callgrind is None else SLOW_START_S)
    while True:
        try:
            talk(gateway, cell=_small(cell), name=f"start{time.monotonic_ns()}", chats=1)
            return
        except ChatFailed:
            if has_ended(gateway) or time.monotonic() > give_up:
                raise
        time.sleep(0.3)


def _small(cell: Cell) -> Cell:
    """A small chat at the same door."""
    return Cell(door=cell.door, kilobytes=0.3, form="whole", unit=cell.unit, encoder=cell.encoder, server=cell.server)


def idle_rates(gateways: Sequence[Gateway]) -> dict[str, float]:
    """Processor milliseconds of each gateway in a millisecond without a request."""
    before = {one.name: processor_ms(one.process.pid) for one in gateways}
    began = time.monotonic()
    time.sleep(_IDLE_S)
    return {
        one.name: (processor_ms(one.process.pid) - before[one.name]) / (time.monotonic() - began) / 1000
        for one in gateways
    }


def measured(
    cell: Cell, *, gateways: Sequence[Gateway], model: Gateway, rounds: int, chats: int, idle: dict[str, float]
) -> Iterator[Measured]:
    """The gateways in this cell. They take turns, in the other order in every second round."""
    found = {one.name: Measured(cell=cell, gateway=one.name) for one in gateways}
    each, own = chats_of(cell, most=chats), Block()
    for number in range(rounds):
        name = f"{cell}_{number}_{time.monotonic_ns()}".translate(_NAMES)
        own.add(talk(model, cell=cell, name=name, chats=each))
        for one in gateways if number % 2 == 0 else reversed(gateways):
            before, began = processor_ms(one.process.pid), time.monotonic()
            found[one.name].block.add(talk(one, cell=cell, name=name, chats=each))
            time.sleep(_AFTER_S)
            used = processor_ms(one.process.pid) - before - idle[one.name] * (time.monotonic() - began) * 1000
            found[one.name].rounds.append(used / each / cell.callers)
    first = found[gateways[0].name].rounds
    for line in found.values():
        line.own_ms = statistics.median(own.walls)
        line.ratios = [ours / theirs for ours, theirs in zip(line.rounds, first, strict=True)]
        yield line


def counted(cell: Cell, *, gateway: Gateway, chats: int) -> Measured:
    """The instructions of a gateway in this cell."""
    assert gateway.callgrind is not None
    each = min(2, chats) if cell.pieces > 100 else max(1, chats // cell.callers)
    gateway.callgrind.switch_on()
    await_start(gateway, cell=cell)  # a server that is being translated closes connections
    talk(gateway, cell=cell, name=f"warm{time.monotonic_ns()}", chats=2)
    gateway.callgrind.counted()
    time.sleep(_IDLE_S)
    idle, began = gateway.callgrind.counted() / _IDLE_S, time.monotonic()
    talk(gateway, cell=cell, name=f"counted{time.monotonic_ns()}", chats=each)
    time.sleep(_AFTER_S)
    total = gateway.callgrind.counted() - idle * (time.monotonic() - began)
    return Measured(cell=cell, gateway=gateway.name, instructions=total / each / cell.callers)


_NAMES: Final = str.maketrans(":=.", "___")
