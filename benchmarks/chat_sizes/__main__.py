"""What a chat costs by the size of its conversation and by the pieces of its reply.

    python -m benchmarks.chat_sizes                                   # the cells of docs/benchmarks.md
    python -m benchmarks.chat_sizes --base main --cells chat:100:whole,chat:0.3:streamed:pieces=300:gap=2
    python -m benchmarks.chat_sizes --base main --cells chat:100:whole --instructions

A cell is DOOR:KILOBYTES:FORM with further fields NAME=VALUE: door chat, messages or responses; form whole or streamed;
pieces of the model server's reply (20) and gap, the milliseconds between them (0); callers (1); last, what a request
ends with, question or result (of a call of a tool); unit turn or task; encoder hashing or distilbert; server, the
dialect of the model server, chat or messages.

Processor time is that of a gateway's processes, without what they use if nobody asks. This tree, the base and LiteLLM
run at once and take turns, and the ratio is that of the same round. "added" is the median time of a chat less that of
a chat with the model server. Delays of pieces are from the moment when the model server sent them. Linux only.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from benchmarks.chat_sizes.cells import DEFAULT, Cell, Setup, by_setup
from benchmarks.chat_sizes.gateways import LITELLM, ROOT, Gateway, Source, exported, model_server, started
from benchmarks.chat_sizes.measures import (
    ChatFailed,
    Measured,
    await_start,
    chats_of,
    counted,
    idle_rates,
    measured,
    talk,
)
from benchmarks.chat_sizes.processor import Callgrind
from benchmarks.chat_sizes.table import COUNTED_HEAD, HEAD, as_json, row
from benchmarks.figures import machine


def cells_of(text: str) -> list[Cell]:
    """The cells of the option --cells."""
    try:
        return [Cell.read(one) for one in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chat_sizes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cells", type=cells_of, default=cells_of(",".join(DEFAULT)), help="separated by commas")
    parser.add_argument("--base", metavar="REVISION", help="git revision to measure in turns with this tree")
    parser.add_argument("--beside", type=Path, default=LITELLM, help="virtual environment with litellm[proxy]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chats", type=int, default=20, help="most chats of a gateway in a round")
    parser.add_argument("--instructions", action="store_true", help="count instructions with callgrind, in one round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round to this file, too")
    asked = parser.parse_args(list(arguments))
    if asked.instructions and not Callgrind.is_installed():
        parser.error("--instructions needs valgrind (apt-get install valgrind)")
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        lines = _lines(asked, folder=Path(folder))
        for line in lines:
            if not found:
                print(COUNTED_HEAD if asked.instructions else HEAD)
            print(row(line), flush=True)
            found.append(as_json(line))
    print(f"\n{machine()}")
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


def _lines(asked: argparse.Namespace, *, folder: Path) -> Iterator[Measured]:
    """The lines of all cells. The gateways of one setup run at once."""
    sources = list(_sources(asked.base, beside=asked.beside, folder=folder))
    for number, (setup, cells) in enumerate(by_setup(asked.cells).items()):
        place = folder / f"setup{number}"
        place.mkdir()
        with model_server() as model:
            await_start(model, cell=cells[0])
            if not asked.instructions:
                yield from _timed(asked, cells=cells, sources=sources, setup=setup, model=model, folder=place)
                continue
            for source in sources:
                if not source.is_litellm:
                    with started(source, setup=setup, model=model, folder=place, counts=True) as gateway:
                        await_start(gateway, cell=cells[0])
                        yield from (counted(cell, gateway=gateway, chats=asked.chats) for cell in cells)


def _sources(base: str | None, *, beside: Path, folder: Path) -> Iterator[Source]:
    if base is not None:
        yield exported(base, folder=folder / "base")
    yield Source(name="this tree", folder=ROOT)
    if (beside / "bin" / "litellm").exists():
        yield Source(name="LiteLLM", folder=beside, is_litellm=True)
    else:
        print(f"LiteLLM is skipped: no bin/litellm in {beside} (`make clients ONLY=litellm` installs it)\n")


def _timed(
    asked: argparse.Namespace,
    *,
    cells: Sequence[Cell],
    sources: Sequence[Source],
    setup: Setup,
    model: Gateway,
    folder: Path,
) -> Iterator[Measured]:
    with ExitStack() as stack:
        starts = (started(source, setup=setup, model=model, folder=folder) for source in sources)
        gateways = _answering([stack.enter_context(start) for start in starts], ask=await_start, cell=cells[0])
        idle = idle_rates(gateways)
        for cell in cells:
            warm = {"name": f"warm{time.monotonic_ns()}", "chats": min(4, chats_of(cell, most=asked.chats))}
            ready = _answering(gateways, ask=talk, cell=cell, **warm)
            yield from measured(cell, gateways=ready, model=model, rounds=asked.rounds, chats=asked.chats, idle=idle)


def _answering(gateways: Sequence[Gateway], *, ask: Callable[..., object], **asked: Any) -> list[Gateway]:
    """The gateways that answer. Only LiteLLM is left out if it does not."""
    found = []
    for one in gateways:
        try:
            ask(one, **asked)
            found.append(one)
        except ChatFailed as error:
            if one.name != "LiteLLM":
                raise
            print(f"LiteLLM is skipped: {str(error)[:400]}\n")
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are ended, too
    main(sys.argv[1:])
