"""Requests of coding agents in the form of Claude Code and Codex. The module needs only the standard library."""

import json

SESSION = "0f4c1d2e-7d0e-4c56-9a55-3f4e2d1c0b9a"
#: the two forms of Claude Code's `metadata.user_id`
USERS = (
    f"user_{'ab' * 32}_account__session_{SESSION}",
    json.dumps({"device_id": "ab" * 32, "account_uuid": "", "session_id": SESSION}),
)
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
CLAUDE_HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "anthropic-dangerous-direct-browser-access": "true",
    "user-agent": "claude-cli/2.1.37 (external, cli)",
    "x-app": "cli",
    "x-stainless-lang": "js",
    "content-type": "application/json",
}
#: header with the id of one of Claude Code's sub-agents
CLAUDE_AGENT = "x-claude-code-agent-id"
CODEX_HEADERS = {
    "accept": "text/event-stream",
    "content-type": "application/json",
    "content-encoding": "zstd",
    "originator": "codex_cli_rs",
    "user-agent": "codex_cli_rs/0.63.0 (Ubuntu 24.4.0; x86_64) xterm-256color",
    "conversation_id": SESSION,
    "session_id": SESSION,
}
#: header with the thread of an agent of Codex
CODEX_AGENT = "thread-id"
_SYSTEM = [
    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.37.fbe; cc_entrypoint=cli; cch=0f3a1;"},
    {"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude.", **CACHED},
    {"type": "text", "text": "You are an interactive agent. " * 200, **CACHED},
]
_NAMES = ("Bash", "Read", "Edit", "Write", "Grep", "Glob", "WebFetch", "TodoWrite", "Task")
_SCHEMA = {"type": "object", "properties": {}}


def claude_request(messages, *, model="claude-sonnet-4-5-20250929", user=USERS[1]):
    """The body of a step of Claude Code, for /v1/messages?beta=true."""
    tools = [{"name": name, "description": f"{name}. " * 50, "input_schema": _SCHEMA} for name in _NAMES]
    more = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}, "stream": True}
    context = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    limits = {"max_tokens": 32000, "metadata": {"user_id": user}, "context_management": context}
    return {"model": model, "messages": messages, "system": _SYSTEM, "tools": tools, **limits, **more}


def claude_title(text, *, user=USERS[1]):
    """The body of Claude Code's request for a title of the conversation: a small model, and no tools."""
    system = [{"type": "text", "text": "Summarize this coding conversation in under 50 characters."}]
    limits = {"max_tokens": 512, "temperature": 1, "metadata": {"user_id": user}, "stream": True}
    messages = [{"role": "user", "content": text}]
    return {"model": "claude-haiku-4-5-20251001", "messages": messages, "system": system, "tools": [], **limits}


def claude_result(call, text):
    """The message with the result of a call that failed, and with a reminder."""
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": text, "is_error": True, **CACHED}
    return {"role": "user", "content": [result, {"type": "text", "text": "<system-reminder>B</system-reminder>"}]}


def codex_message(text, *, role="user"):
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def codex_request(items, *, model="auto"):
    """The body of a step of Codex, for /v1/responses, before it is compressed."""
    shell = {"type": "function", "name": "shell_command", "description": "Run.", "strict": False, "parameters": _SCHEMA}
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'}
    patch = {"type": "custom", "name": "apply_patch", "description": "Edit.", "format": grammar}
    first = [
        codex_message("<permissions instructions>Ask before you write.</permissions instructions>", role="developer"),
        codex_message("<environment_context><cwd>/work</cwd></environment_context>"),
    ]
    return {
        "model": model,
        "instructions": "You are Codex, based on GPT-5. " * 100,
        "input": [*first, *items],
        "tools": [shell, patch, {"type": "web_search", "external_web_access": False}],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": SESSION,
    }
