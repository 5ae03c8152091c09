"""Calls of Python functions that an answer costs in the service's process, at each door: figures without noise.

    python -m benchmarks.gateway --calls

The service has the hashing encoder and two arms of the class `model` in front of a scripted model server. The calls of
its routines, which run without a question too, are subtracted. Run as a module of its own, it is that service.
"""

import argparse
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import httpx

import ragbandit
from benchmarks.service_process import environment, free_port

#: folder of our modules
_OURS: Final = f"{Path(ragbandit.__file__).parent}{os.sep}"
#: questions before those that are counted, counted questions, and seconds without a question
WARM_UP, COUNTED, IDLE_S = 10, 40, 4.0
#: longest start of the service, and longest wait for its counts, seconds
_START_S, _COUNT_S = 60.0, 10.0

_Body = Callable[[str], dict[str, Any]]


def _chat(question: str) -> dict[str, Any]:
    return {"model": "auto", "messages": [{"role": "user", "content": question}]}


def _long_chat(question: str) -> dict[str, Any]:
    """A chat of 100 messages and 200 kB that ends with the question: 33 calls of tools with their results."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are a coding agent. " * 40}]
    for number in range(33):
        call = {"name": "read", "arguments": json.dumps({"file": f"{question} {number}", "lines": "1-100"})}
        calls = [{"id": f"call_{number}", "type": "function", "function": call}]
        messages += [
            {"role": "user", "content": "Read the next file, and say what it does. " * 40},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": "a line of the file with some words\n" * 115},
        ]
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in ("file", "lines", "folder")}}
    names = ("read", "write", "search", "list", "run", "test", "fetch", "ask")
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in names]
    return {"model": "auto", "messages": [*messages, {"role": "user", "content": question}], "tools": tools}


def _long_messages(question: str) -> dict[str, Any]:
    """`_long_chat` in the form of Messages."""
    chat, messages = _long_chat(question), list[dict[str, Any]]()
    system, *turns = chat["messages"]
    for turn in turns:
        role, content = turn["role"], turn["content"]
        if role == "tool":
            said = [{"type": "text", "text": content}]
            result = {"type": "tool_result", "tool_use_id": turn["tool_call_id"], "content": said}
            messages.append({"role": "user", "content": [result]})
        elif role == "assistant":
            (call,) = turn["tool_calls"]
            used = {"name": call["function"]["name"], "input": json.loads(call["function"]["arguments"])}
            messages.append({"role": role, "content": [{"type": "tool_use", "id": call["id"], **used}]})
        else:
            said = [{"type": "text", "text": content}]
            if messages:  # the question of a user follows the result before it
                messages[-1]["content"] += said
            else:
                messages.append({"role": role, "content": said})
    blocks = [{"type": "text", "text": system["content"]}]
    functions = [tool["function"] for tool in chat["tools"]]
    tools = [{"name": one["name"], "input_schema": one["parameters"]} for one in functions]
    return {"model": "auto", "max_tokens": 100, "system": blocks, "messages": messages, "tools": tools}


#: name of a door -> (path, function from a question to the body of a request)
DOORS: Final[Mapping[str, tuple[str, _Body]]] = {
    "chat": ("/v1/chat/completions", _chat),
    "messages": ("/v1/messages", lambda question: _chat(question) | {"max_tokens": 100}),
    "responses": ("/v1/responses", lambda question: {"model": "auto", "input": question}),
    "route": ("/v1/route", lambda question: {"question": question}),
    "long chat": ("/v1/chat/completions", _long_chat),
    "long messages": ("/v1/messages", _long_messages),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Calls:
    """Calls of functions for one answer, all and in our modules, and how many of our modules are entered meanwhile."""

    door: str
    streamed: bool
    calls: float
    ours: float
    modules: int


class _Counter:
    """Counts the calls of this process by file, and writes them to a file at SIGUSR2."""

    def __init__(self, path: Path) -> None:
        self._path, self._files = path, Counter[str]()

    def start(self) -> None:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        signal.signal(signal.SIGUSR2, self._write)

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            self._files[frame.f_code.co_filename] += 1

    def _write(self, _signal: int, _frame: FrameType | None) -> None:
        written = self._path.with_suffix(".new")
        written.write_text(json.dumps(dict(self._files)))
        written.replace(self._path)


class _Service:
    def __init__(self, process: "subprocess.Popen[bytes]", *, port: int, counts: Path) -> None:
        self._process, self._counts = process, counts
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)

    def await_start(self) -> None:
        give_up = time.monotonic() + _START_S
        while True:
            try:
                self.client.get("/ready").raise_for_status()
                return
            except httpx.HTTPError:
                if time.monotonic() > give_up or self._process.poll() is not None:
                    raise RuntimeError("the service that counts its calls did not start") from None
                time.sleep(0.1)

    def counts(self) -> Counter[str]:
        """Calls so far by file."""
        self._counts.unlink(missing_ok=True)
        self._process.send_signal(signal.SIGUSR2)
        give_up = time.monotonic() + _COUNT_S
        while not self._counts.exists():
            if time.monotonic() > give_up:
                raise RuntimeError("the service did not write its counts")
            time.sleep(0.02)
        return Counter(json.loads(self._counts.read_text()))

    def ask(self, door: str, numbers: range, *, streamed: bool) -> None:
        path, body = DOORS[door]
        more = {"stream": True} if streamed else {}
        for number in numbers:
            self.client.post(path, json=body(f"What is item {number}?") | more).raise_for_status()


@contextmanager
def _counted_service(
    settings: Mapping[str, Any], *, folder: Path, port: int, environ: Mapping[str, str]
) -> Iterator[_Service]:
    config, counts = folder / "calls.json", folder / "counts.json"
    config.write_text(json.dumps(settings))
    given, environ = ("--config", str(config)), environment() | dict(environ)
    subprocess.run([sys.executable, "-m", "ragbandit", "migrate", *given], env=environ, check=True, capture_output=True)
    with (folder / "calls.log").open("wb") as log:
        command = [sys.executable, "-m", "benchmarks.calls", str(counts), "serve", *given]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
    service = _Service(process, port=port, counts=counts)
    try:
        service.await_start()
        yield service
    finally:
        service.client.close()
        process.terminate()
        process.wait(30)


def calls_of(service: _Service, door: str, *, streamed: bool) -> Calls:
    """Count the calls of an answer."""
    service.ask(door, range(WARM_UP), streamed=streamed)
    before = service.counts()
    time.sleep(IDLE_S)
    idle = service.counts() - before
    before, began = service.counts(), time.monotonic()
    service.ask(door, range(100, 100 + COUNTED), streamed=streamed)
    share = (time.monotonic() - began) / IDLE_S
    found = service.counts() - before
    each = {file: (count - idle[file] * share) / COUNTED for file, count in found.items()}
    ours = {file: count for file, count in each.items() if file.startswith(_OURS)}
    return Calls(door=door, streamed=streamed, calls=sum(each.values()), ours=sum(ours.values()), modules=len(ours))


def measured(settings: Callable[[str, int], dict[str, Any]], *, environ: Mapping[str, str]) -> list[Calls]:
    """The calls at each door. settings: makes the settings of the service from a folder and its port.

    environ: further variables of its environment
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        made = settings(name, port)
        with _counted_service(made, folder=Path(name), port=port, environ=environ) as service:
            ways = [(door, streamed) for door in DOORS for streamed in (False, True) if door != "route" or not streamed]
            return [calls_of(service, door, streamed=streamed) for door, streamed in ways]


def print_calls(found: list[Calls]) -> None:
    """Print one line for each door."""
    print("calls of Python functions in the service's process for an answer, encoder hashing")
    print(f"{'':23} {'all':>7} {'ours':>7} {'modules':>8}")
    for one in found:
        name = f"{one.door}, {'streamed' if one.streamed else 'whole'}"
        print(f"{name:23} {one.calls:7,.0f} {one.ours:7,.0f} {one.modules:8}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calls", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("counts", type=Path, help="file to write the counts to")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="words of the ragbandit command that is counted")
    asked = parser.parse_args()
    _Counter(asked.counts).start()
    sys.argv = ["ragbandit", *asked.command]
    runpy.run_module("ragbandit", run_name="__main__", alter_sys=True)
