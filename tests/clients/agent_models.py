"""Scripted models for real coding agents: the user's words choose the script, the agent's own tools do the work.

LIST asks for one call of a shell and answers with its output; FOREVER asks for one again and again; DELEGATE starts a
sub-agent that gets LIST, and answers with what it found. Every request is written to a file, a line each.
"""

import json
import os
import re
from pathlib import Path

from ragbandit.testing.openai_server import Reply
from tests.support.anthropic_events import events_of, sse_of
from tests.support.servers.scripted_http import Scripted

#: what a summary of a compacted conversation contains
SUMMARY = "SUMMARY-OF-THE-TALK"
#: names of shells in the tools of Claude Code and Codex -> their arguments
_SHELLS = {
    "Bash": {"command": "ls", "description": "List files"},
    "exec_command": {"cmd": "ls"},
    "shell_command": {"command": "ls"},
}
_AGENTS = {
    "Agent": {"description": "List files", "prompt": "LIST the files.", "subagent_type": "general-purpose"},
    "Task": {"description": "List files", "prompt": "LIST the files.", "subagent_type": "general-purpose"},
    "spawn_agent": {"message": "LIST the files."},
}


def next_step(said, *, tools, results):
    """(name, arguments) of a call, or the text of an answer.

    said: texts of users; results: texts of the results of calls; both in order
    """
    last, said, found = said[-1], "\n".join(said), results[-1] if results else ""
    if "summary" in last and SUMMARY not in last:  # the agent compacts the conversation
        return f"{SUMMARY}: the user asked for files."
    if SUMMARY in said:
        return "Continued."
    if "FOREVER" in said or ("LIST" in said and not results and "DELEGATE" not in said):
        return call_of(tools, _SHELLS)
    if "DELEGATE" in said and not results:
        return call_of(tools, _AGENTS)
    agent = re.search(r"agent_id\W+([\w-]{8,})", found)
    waits = [name for name in tools if name.endswith("wait_agent")]
    if "DELEGATE" in said and agent and waits and len(results) == 1:
        return waits[0], {"targets": [agent[1]], "timeout_ms": 10_000}
    return f"Found: {found}"


def call_of(tools, known):
    """The call of the first tool that is known; a namespace may be before its name."""
    for name in tools:
        for ending, arguments in known.items():
            if name == ending or name.endswith(f"_{ending}"):
                return name, arguments
    return f"None of these tools is known: {', '.join(tools)}"


class AgentModels:
    """The replies of both dialects, and the file of their requests."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def _note(self, server, sent):
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"server": server, "sent": sent}) + "\n")

    def chat(self, sent):
        """The reply of a server of chat completions."""
        self._note("chat", sent)
        messages = sent["messages"]
        said = [texts(one.get("content")) for one in messages if one["role"] == "user"]
        results = [texts(one.get("content")) for one in messages if one["role"] == "tool"]
        tools = [tool["function"]["name"] for tool in sent.get("tools") or () if tool["type"] == "function"]
        step = next_step(said, tools=tools, results=results)
        if isinstance(step, str):
            return Reply(text=step)
        call = {"id": f"call_{os.urandom(6).hex()}", "type": "function"}
        function = {"name": step[0], "arguments": json.dumps(step[1])}
        return Reply(message={"tool_calls": [call | {"function": function}]}, finish="tool_calls")

    def messages(self, sent):
        """The reply of a server of Messages."""
        self._note("messages", sent)
        blocks = [
            block
            for one in sent["messages"]
            if one["role"] == "user"
            for block in (one["content"] if isinstance(one["content"], list) else [{"text": one["content"]}])
        ]
        said = [block["text"] for block in blocks if "text" in block]
        results = [texts(block.get("content")) for block in blocks if block.get("type") == "tool_result"]
        tools = [tool["name"] for tool in sent.get("tools") or ()]
        step = next_step(said, tools=tools, results=results)
        content = {"type": "text", "text": step}
        if not isinstance(step, str):
            content = {"type": "tool_use", "id": f"toolu_{os.urandom(6).hex()}", "name": step[0], "input": step[1]}
        message = {"type": "message", "id": "msg_1", "role": "assistant", "model": sent["model"], "content": [content]}
        message |= {"stop_reason": "end_turn" if isinstance(step, str) else "tool_use", "stop_sequence": None}
        if sent.get("stream"):
            return Scripted(body=sse_of(events_of(message)), headers={"content-type": "text/event-stream"})
        return Scripted(body=json.dumps(message | {"usage": {"input_tokens": 9, "output_tokens": 5}}).encode())


def texts(content):
    """The text of a message's content, whatever its form."""
    if isinstance(content, list):
        return "\n".join(block.get("text", "") for block in content)
    return content or ""
