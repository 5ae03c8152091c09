"""docs/openai.md: its code runs as it stands, its bodies are taken."""

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import yaml

PAGE = (Path(__file__).parents[4] / "docs" / "openai.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8100"


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, flags=re.S | re.M)


def test_the_python_of_the_page_runs(service, answers, capsys):
    """All of its blocks run one after the other against a service, and print the answer three times."""
    answers()
    code = "\n".join(blocks("python")).replace(ADDRESS, service.url)
    names: dict = {}
    exec(compile(code, "docs/openai.md", "exec"), names)
    said = capsys.readouterr().out
    assert said.count("Bram Stoker") == 3
    assert said.endswith("completed\n")
    assert "ragbandit/" in said
    names["stream"].close()
    names["client"].close()
    assert service.router.status().counters.feedback == 1


def test_the_curl_of_the_page_is_taken(http, answers):
    """Its command sends a body that the service answers."""
    answers()
    (command,) = re.findall(r"^    (curl .*?\n(?:         .*\n)+)", PAGE, flags=re.M)
    words = shlex.split(command.replace("\\\n", " "))
    body = json.loads(words[words.index("-d") + 1])
    assert words[2].startswith(ADDRESS)
    assert http.post(words[2].removeprefix(ADDRESS), json=body).status_code == 200


def test_the_settings_of_the_page():
    """Headers and configuration are the JSON and the YAML that the programs read, and headers are those we read."""
    (headers,) = blocks("json")
    assert {"X-OpenWebUI-Chat-Id"} == set(json.loads(headers))
    (chat,) = blocks("yaml")
    (endpoint,) = yaml.safe_load(chat)["endpoints"]["custom"]
    assert endpoint["baseURL"] == f"{ADDRESS}/v1"
    assert set(endpoint["headers"]) == {"X-RagBandit-Session-Id"}


def test_the_example_runs(service, answers, capsys, monkeypatch):
    """examples/openai_client.py prints an answer in pieces, and its rating is stored."""
    answers()
    monkeypatch.setenv("RAGBANDIT_URL", service.url)
    monkeypatch.setattr(sys, "argv", ["openai_client"])
    runpy.run_module("ragbandit.examples.openai_client", run_name="__main__")
    said = capsys.readouterr().out
    assert said.startswith("Bram Stoker\n(ragbandit/")
    assert service.router.status().counters.feedback == 1
