"""Codex and Claude Code as they come from npm, in front of models that speak chat completions and Messages.

The agents run commands that a scripted model chose, and would call home. So they run only where this process reaches
nothing but loopback, in a folder of their own. The scripts are in tests/clients/agent_models.py.
"""

import json
import os
import re
import subprocess
import urllib.request
import uuid
from pathlib import Path

import pytest

BIN = Path(os.environ.get("RAGBANDIT_CLIENTS_NPM", "/none"))
#: dialect of the models -> address of the gateway in front of them
URLS = {name: os.environ.get(f"RAGBANDIT_CLIENTS_AGENTS_{name.upper()}", "") for name in ("chat", "messages")}
KEYS = {name: os.environ.get(f"RAGBANDIT_CLIENTS_AGENTS_{name.upper()}_KEY", "") for name in URLS}
#: a file in the agents' folder: an answer that names it has the output of `ls`
FOUND = "a-file-of-this-test.txt"
#: what a summary of the scripted model contains
SUMMARY = "SUMMARY-OF-THE-TALK"

pytestmark = [
    pytest.mark.skipif(not os.environ.get("RAGBANDIT_CLIENTS_ISOLATED"), reason="needs `unshare` (network namespaces)"),
    pytest.mark.skipif(not (BIN / "codex").exists(), reason="needs npm, which installs Codex and Claude Code"),
]


class Run:
    """What an agent printed, the conversation's id, and what the models were sent."""

    def __init__(self, done, *, session, sent, dialect) -> None:
        self.out, self.err, self.code, self.session = done.stdout, done.stderr, done.returncode, session
        self.sent, self.dialect = sent, dialect

    def ended(self):
        """How many tasks of the conversation were open; all are ended, and the main agent's is judged."""
        url = f"{URLS[self.dialect]}/v1/sessions/{self.session}/end"
        body = json.dumps({"feedback": {"rating": True, "source": "code"}}).encode()
        request = urllib.request.Request(url, body, {"content-type": "application/json"})
        request.add_header("authorization", f"Bearer {KEYS[self.dialect]}")
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.load(reply)["ended"]


class Agent:
    """Runs agents in a home and a project of this test."""

    def __init__(self, folder: Path, *, dialect: str) -> None:
        self.dialect, self.home, self.project = dialect, folder / "home", folder / "project"
        (self.home / ".codex").mkdir(parents=True)
        self.project.mkdir()
        (self.project / FOUND).touch()
        self.requests = Path(os.environ["RAGBANDIT_CLIENTS_AGENTS_REQUESTS"])

    def _run(self, command, *, session=None, **environ):
        before = self.requests.stat().st_size if self.requests.exists() else 0
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.project,
            env=kept | {"HOME": str(self.home), "GATEWAY_KEY": KEYS[self.dialect], **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        with self.requests.open(encoding="utf-8") as file:
            file.seek(before)
            sent = [json.loads(line) for line in file]
        assert {one["server"] for one in sent} == {self.dialect}
        found = re.search(r"session id: ([\w-]+)", done.stderr)
        session = session or (found[1] if found else "")
        return Run(done, session=session, sent=[one["sent"] for one in sent], dialect=self.dialect)

    def codex(self, words, *, provider="gateway", **settings):
        (self.home / ".codex" / "config.toml").write_text(
            f'model = "auto"\nmodel_provider = "made"\n[model_providers.made]\nname = "{provider}"\n'
            f'base_url = "{URLS[self.dialect]}/v1"\nwire_api = "responses"\nenv_key = "GATEWAY_KEY"\n'
        )
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={json.dumps(value)}")]
        flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        return self._run([BIN / "codex", "exec", *flags, *options, words])

    def claude(self, words, *options, session=None):
        environ = dict.fromkeys(("DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "DISABLE_AUTOUPDATER"), "1")
        environ |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "IS_SANDBOX": "1"}
        environ |= {"ANTHROPIC_BASE_URL": URLS[self.dialect], "ANTHROPIC_API_KEY": KEYS[self.dialect]}
        named = [] if session else ["--session-id", session := str(uuid.uuid4())]
        allowed = ["--allowedTools", "Bash,Agent,Task"]
        return self._run([BIN / "claude", "-p", words, *named, *allowed, *options], session=session, **environ)


@pytest.fixture(params=["chat", "messages"])
def agent(request, tmp_path):
    return Agent(tmp_path, dialect=request.param)


def efforts(run):
    """The efforts that the models were asked for."""
    return {one.get("reasoning_effort") or (one.get("output_config") or {}).get("effort") for one in run.sent}


def test_codex_uses_a_tool(agent):
    """Codex runs the command that the model asked for; both requests are one task, with the user's effort."""
    run = agent.codex("LIST the files.", model_reasoning_effort="high")
    assert FOUND in run.out, run.err
    assert (len(run.sent), run.ended()) == (2, 1)
    assert efforts(run) == {"high"}


def test_claude_code_uses_a_tool(agent):
    """Claude Code runs the command that the model asked for; both requests are one task, with the user's effort."""
    run = agent.claude("LIST the files.", "--effort", "medium")
    assert FOUND in run.out, run.err
    assert (len([one for one in run.sent if one.get("tools")]), run.ended()) == (2, 1)
    assert efforts(run) == {"medium"}


def test_codex_delegates(agent):
    """A sub-agent of Codex has a task of its own in the conversation, and its answer reaches the main agent."""
    run = agent.codex("DELEGATE this.")
    assert FOUND in run.out, run.err
    assert run.ended() == 2


def test_claude_code_delegates(agent):
    """A sub-agent of Claude Code has a task of its own in the conversation, and its answer reaches the main agent."""
    run = agent.claude("DELEGATE this.")
    assert FOUND in run.out, run.err
    assert run.ended() == 2


@pytest.mark.parametrize("provider", ["gateway", "OpenAI"])
def test_codex_compacts(agent, provider):
    """Codex goes on after it has compacted a conversation by itself, or by the service if it takes this for OpenAI."""
    run = agent.codex("LIST the files.", provider=provider, model_auto_compact_token_limit=1)
    assert "Continued." in run.out, run.err
    assert SUMMARY in json.dumps(run.sent[-1])
    assert run.ended() == 1


def test_claude_code_compacts(agent):
    """Claude Code continues a conversation after /compact, with the summary in place of the history."""
    first = agent.claude("LIST the files.")
    more = ("--resume", first.session)
    assert agent.claude("/compact", *more, session=first.session).code == 0
    last = agent.claude("LIST them again.", *more, session=first.session)
    assert "Continued." in last.out, last.err
    assert SUMMARY in json.dumps(last.sent[-1])


def test_codex_at_a_limit(agent):
    """Codex stops at the limit of a task, and prints which limit it is."""
    run = agent.codex("FOREVER list the files.")
    assert (len(run.sent), run.code) == (8, 1)
    assert "task_limit" in run.out + run.err


def test_claude_code_at_a_limit(agent):
    """Claude Code stops at the limit of a task without a retry, and prints which limit it is."""
    run = agent.claude("FOREVER list the files.")
    assert (len([one for one in run.sent if one.get("tools")]), run.code) == (8, 1)
    assert "task_limit" in run.out + run.err
