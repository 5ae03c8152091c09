"""Conversations of coding agents with made texts, in the dialect of each door.

A body has the shape of a real request: a system prompt, twenty tools with schemas, and a growing history of calls and
their results. Messages are written as by Claude Code 2.1, Responses as by Codex 0.171. Texts are made from a fixed
seed, so every run sends the same requests. Each result names its conversation, so no two conversations share a result.
"""

import json
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.chat_sizes.cells import Cell
from benchmarks.chat_sizes.model_server import CALLED, Answer, order

#: path of a door, and headers that its clients send besides the content type and the key
PATHS: Final = {"chat": "/v1/chat/completions", "messages": "/v1/messages?beta=true", "responses": "/v1/responses"}
_TOOLS: Final = (
    *("Agent", "Bash", "Edit", "Glob", "Grep", "NotebookEdit", "Read", "SendMessage", "Skill", "TaskCreate"),
    *("TaskGet", "TaskList", "TaskOutput", "TaskStop", "TaskUpdate", "WebFetch", "WebSearch", "Workflow", "Write"),
    "mcp__tracker__search",
)
#: words of made texts: names, marks that JSON escapes, and letters outside ASCII
_VOCABULARY: Final = (
    "the value of each row is read once and written back when its lock is free , so a caller waits def return self . "
    "rows [ index ] if none else raise for name in items : = == -> import from class 'text' \"quoted\" \\n \\\\server "
    "{key: <tag> # naïve — Größe → 0x1F 1,024 3.14 snake_case_name CamelCaseName /srv/project/src/module.py "
    "2026-11-30T02:05:11Z"
)
#: the longest result of a call, characters
_RESULTS: Final = (600, 1500, 3000, 6000)
#: most characters of a system prompt and of a tool
_SYSTEM, _TOOL = 12_000, 1_500
#: below this size a conversation has only a question
_AGENT_KB: Final = 2.0
_CACHED: Final = {"cache_control": {"type": "ephemeral"}}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """A call of a tool with its result, or without a call the user's next question, after a text of the model."""

    text: str
    call: str = ""
    arguments: str = ""
    result: str = ""
    question: str = ""


@dataclass(kw_only=True, slots=True)
class Conversation:
    """A conversation that grows by each reply."""

    cell: Cell
    name: str
    system: str = ""
    tools: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    first: str = ""
    steps: list[_Step] = field(default_factory=list)
    _session: str = ""

    @classmethod
    def made(cls, cell: Cell, *, name: str) -> "Conversation":
        """A conversation whose next request has about the size of the cell. name: makes its texts its own."""
        made = cls(cell=cell, name=name, first=f"What is item 0 of {name}? {order(cell)}")
        made._session = str(uuid.uuid5(uuid.NAMESPACE_OID, name))
        if cell.kilobytes < _AGENT_KB:
            return made
        size, texts = int(cell.kilobytes * 1000), _Texts(1)
        made.system = f"You are a coding agent in /srv/{name}.\n{texts.prose(min(_SYSTEM, int(size * 0.15)))}"
        made.tools = [texts.tool(tool, size=min(_TOOL, size // 50)) for tool in _TOOLS]
        made.first = f"Please repair the tests of {name}. {texts.prose(200)}"
        made._fill(size, texts=texts)
        return made

    def _fill(self, size: int, *, texts: "_Texts") -> None:
        """Add steps until the body has about this size."""
        ends = _Step(
            text="The tests pass now — all of them.", question=f"What is item 0 of {self.name}? {order(self.cell)}"
        )
        left, number = size - len(self.body()) - self._size(ends), 0
        while left > 300:
            step = texts.step(f"{self.name}_{number}", size=left)
            self.steps.append(step)
            left, number = left - self._size(step), number + 1
        self.steps.append(ends)

    def _size(self, step: _Step) -> int:
        return len(_encoded(list(_WRITERS[self.cell.door](step)))) - 1

    def add(self, answer: Answer, *, number: int) -> None:
        """Add the model's answer and what follows it: the result of its call, or the next question."""
        asked = f"What is item {number} of {self.name}? {order(self.cell)}"
        if answer.call:
            result = f"{self.name}: {number} lines\n{order(self.cell)}"
            step = _Step(text=answer.text, call=answer.call, arguments=CALLED, result=result)
        else:
            step = _Step(text=answer.text, question=asked)
        if self.cell.kilobytes < _AGENT_KB and not answer.call:
            self.first = asked  # a small chat has no history
        else:
            self.steps.append(step)

    def headers(self) -> dict[str, str]:
        """The headers that name the conversation, as the agents of the door send them."""
        if self.cell.door == "messages":
            agent = {"x-claude-code-session-id": self._session} if self.tools else {}
            return {"anthropic-version": "2023-06-01", "anthropic-beta": "interleaved-thinking-2025-05-14"} | agent
        if not self.tools and self.cell.unit == "turn":
            return {}
        return {"session-id" if self.cell.door == "responses" else "x-session-affinity": self._session}

    def body(self) -> bytes:
        """The next request."""
        written = [one for step in self.steps for one in _WRITERS[self.cell.door](step)]
        body = {"chat": self._chat, "messages": self._messages, "responses": self._responses}[self.cell.door](written)
        return _encoded(body | ({"stream": True} if self.cell.form == "streamed" else {}))

    def _chat(self, written: list[dict[str, Any]]) -> dict[str, Any]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        body: dict[str, Any] = {
            "model": "auto",
            "messages": [*system, {"role": "user", "content": self.first}, *written],
        }
        if self.tools:
            functions = [{"name": name, "description": text, "parameters": given} for name, text, given in self.tools]
            tools = [{"type": "function", "function": function} for function in functions]
            body |= {"max_tokens": 8192, "tools": tools, "tool_choice": "auto"}
        if self.cell.form == "streamed":
            body["stream_options"] = {"include_usage": True}
        return body

    def _messages(self, written: list[dict[str, Any]]) -> dict[str, Any]:
        content: Any = self.first
        user = {"device_id": "ab" * 32, "account_uuid": "", "session_id": self._session}
        more: dict[str, Any] = {}
        if self.tools:
            content = [_text("<system-reminder>Today is Monday.</system-reminder>"), _text(self.first)]
            blocks = [_text("You are a coding agent.") | _CACHED, _text(self.system) | _CACHED]
            tools = [{"name": name, "description": text, "input_schema": given} for name, text, given in self.tools]
            more = {"system": blocks, "tools": tools, "metadata": {"user_id": json.dumps(user)}}
        elif self.cell.unit == "task":
            more = {"metadata": {"user_id": json.dumps(user)}}
        return {
            "model": "auto",
            "max_tokens": 8192,
            "messages": [{"role": "user", "content": content}, *written],
        } | more

    def _responses(self, written: list[dict[str, Any]]) -> dict[str, Any]:
        begins = [_item("developer", self.system)] if self.system else []
        body = {"model": "auto", "input": [*begins, _item("user", self.first), *written], "store": False}
        if self.tools:
            tools = [
                {"type": "function", "name": name, "description": text, "strict": False, "parameters": given}
                for name, text, given in self.tools
            ]
            asked = {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]}
            body |= {"tools": tools, "tool_choice": "auto", "prompt_cache_key": self._session, **asked}
        return body


class _Texts:
    """Makes texts from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._words = _VOCABULARY.split()

    def prose(self, size: int) -> str:
        """Lines of this many characters."""
        lines, length = [], 0
        while length < size:
            lines.append(" ".join(self._random.choices(self._words, k=self._random.randint(4, 14))))
            length += len(lines[-1]) + 1
        return "\n".join(lines)[:size]

    def tool(self, name: str, *, size: int) -> tuple[str, str, dict[str, Any]]:
        """A tool of about this size: its name, description and schema."""
        properties: dict[str, Any] = {"path": {"type": "string", "description": "The absolute path — in the project"}}
        schema = {"type": "object", "properties": properties, "required": ["path"], "additionalProperties": False}
        while len(_encoded(schema)) < size // 2:
            kind = self._random.choice(("string", "number", "boolean"))
            properties[f"option_{len(properties)}"] = {"type": kind, "description": self.prose(90)}
        return name, self.prose(max(20, size - len(_encoded(schema)) - 80)), schema

    def step(self, name: str, *, size: int) -> _Step:
        """A call that reads a file, with its result; at most about `size` bytes."""
        lines = self.prose(min(self._random.choice(_RESULTS), max(size - 450, 1))).split("\n")
        numbered = (f"{number:6}\t{line}" for number, line in enumerate(lines, start=1))
        arguments = json.dumps({"path": f"/srv/project/{name}.py", "option_1": 'a "quoted" text'})
        call = uuid.uuid5(uuid.NAMESPACE_OID, name).hex[:24]
        return _Step(text=self.prose(80), call=f"call_{call}", arguments=arguments, result="\n".join([name, *numbered]))


def _chat_step(step: _Step) -> Iterator[dict[str, Any]]:
    said: dict[str, Any] = {"role": "assistant", "content": step.text}
    if not step.call:
        yield from (said, {"role": "user", "content": step.question})
        return
    call = {"id": step.call, "type": "function", "function": {"name": "Read", "arguments": step.arguments}}
    yield said | {"tool_calls": [call]}
    yield {"role": "tool", "tool_call_id": step.call, "content": step.result}


def _messages_step(step: _Step) -> Iterator[dict[str, Any]]:
    if not step.call:
        yield {"role": "assistant", "content": [_text(step.text)]}
        yield {"role": "user", "content": [_text(step.question)]}
        return
    used = {"type": "tool_use", "id": step.call, "name": "Read", "input": json.loads(step.arguments)}
    yield {"role": "assistant", "content": [_text(step.text), used]}
    yield {"role": "user", "content": [{"type": "tool_result", "tool_use_id": step.call, "content": step.result}]}


def _responses_step(step: _Step) -> Iterator[dict[str, Any]]:
    yield {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": step.text}]}
    if not step.call:
        yield _item("user", step.question)
        return
    yield {"type": "function_call", "call_id": step.call, "name": "Read", "arguments": step.arguments}
    yield {"type": "function_call_output", "call_id": step.call, "output": step.result}


_WRITERS: Final = {"chat": _chat_step, "messages": _messages_step, "responses": _responses_step}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _item(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
