"""deploy/compose.yaml as it is written: its commands, environment and health checks, on what the slim image installs.

No container is started: each service of ours is a process here whose folders and addresses are the test's.
"""

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml

from benchmarks.service_process import environment, free_port
from tests.release.licences import dependencies
from tests.support.servers.scripted_http import ScriptedHttp, json_reply

from .conftest import ROOT

SERVICES = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text("utf-8"))["services"]
ANSWER = {
    "id": "one",
    "object": "chat.completion",
    "created": 1,
    "model": "some-model",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Paris"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
}
#: put before everything else: what the image does not install cannot be imported
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


def not_in_slim() -> set[str]:
    """Modules of installed packages that the slim image does not have."""
    text = (ROOT / "deploy/Dockerfile").read_text("utf-8").partition("AS install-full")[0]
    (extras,) = re.findall(r"\$\{wheel\}\[(.*?)\]", text)
    there = dependencies(extras=extras.split(",")) | {"ragbandit"}
    modules = importlib.metadata.packages_distributions()
    return {
        module
        for module, names in modules.items()
        if not there & {name.lower().replace("_", "-").replace(".", "-") for name in names}
        and module not in sys.stdlib_module_names
        and not module.startswith("_")
    }


class Compose:
    """Our services, by the names of compose.yaml."""

    def __init__(self, folder: Path, *, database: str, redis: str, model: str) -> None:
        self.folder, self.port, self.admin_port = folder, free_port(), free_port()
        for name in ("data", "cache", "tmp", "blocked", "etc", "etc/ragbandit"):
            (folder / name).mkdir()
        config = yaml.safe_load((ROOT / "config.yaml").read_text("utf-8"))
        config["encoder"] = {"model": "hashing"}
        config["generator"] = {"name": "openai", "model": "some-model"}
        config["generator"]["openai"] = {"base_url": f"{model}/v1", "stream": False}
        (folder / "etc/ragbandit/config.yaml").write_text(yaml.safe_dump(config))
        (folder / "blocked/sitecustomize.py").write_text(WITHOUT.format(blocked=not_in_slim()))
        self.addresses = {"DATABASE_URL": database, "REDIS_URL": redis}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def _here(self, text: str) -> str:
        """A value of compose.yaml with the folders and ports of this test."""
        text = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", text).replace("$$", "$")
        text = text.replace("8100", str(self.port)).replace("8101", str(self.admin_port))
        return re.sub(r"(?<![\w/])/(data|tmp|etc)\b", rf"{self.folder}/\1", text)

    def _environment(self, name: str) -> dict[str, str]:
        given = {key: self._here(value) for key, value in SERVICES[name]["environment"].items()}
        path = f"{self.folder / 'blocked'}{os.pathsep}{ROOT}"
        return environment() | given | self.addresses | {"PYTHONPATH": path, "XDG_CACHE_HOME": f"{self.folder}/cache"}

    def _command(self, name: str, command: list[str]) -> dict:
        program = [sys.executable, "-m", "ragbandit"] if command[0] == "ragbandit" else [command[0]]
        program = [sys.executable] if command[0] == "python" else program
        words = [*program, *map(self._here, command[1:])]
        return {"args": words, "env": self._environment(name), "cwd": self.folder / "data"}

    def run(self, name: str, *command: str) -> "subprocess.CompletedProcess[str]":
        wanted = list(command) or SERVICES[name]["command"]
        return subprocess.run(**self._command(name, wanted), capture_output=True, text=True, timeout=60)

    def start(self, name: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            command = self._command(name, SERVICES[name]["command"])
            self.running[name] = subprocess.Popen(**command, stdout=log, stderr=log)

    def wait_healthy(self, name: str) -> None:
        kind, *test = SERVICES[name]["healthcheck"]["test"]
        give_up = time.monotonic() + 60
        while self.run(name, *(["sh", "-c", *test] if kind == "CMD-SHELL" else test)).returncode:
            assert time.monotonic() < give_up, (self.folder / f"{name}.log").read_text()[-2000:]
            assert self.running[name].poll() is None, (self.folder / f"{name}.log").read_text()[-2000:]


@pytest.fixture
def compose(tmp_path, postgres, redis_server):
    name = postgres.new_database()
    with ScriptedHttp(json_reply(ANSWER)) as model:
        made = Compose(tmp_path, database=postgres.url(name), redis=redis_server, model=model.url)
        yield made
        for process in made.running.values():
            process.kill()
            process.wait(10)
    postgres.drop(name)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_services_of_compose_on_the_slim_image(compose):
    """With a schema, a key and an index, as docs/deploy.md makes them, all get healthy, answer, learn and end."""
    assert "torch" in not_in_slim()
    assert compose.run("worker", "python", "-c", "import torch").returncode == 1
    assert "run: `ragbandit migrate`" in compose.run("service").stderr
    migrated = compose.run("migrate")
    assert migrated.returncode == 0, migrated.stderr
    assert "without API keys" in compose.run("service").stderr
    result = compose.run("service", "ragbandit", "keys", "create", "--name", "ops", "--role", "admin", "--json")
    headers = {"authorization": f"Bearer {json.loads(result.stdout)['key']}"}
    (compose.folder / "tmp/corpus.jsonl").write_text(json.dumps({"id": "a", "title": "France", "text": "Paris."}))
    built = compose.run("worker", "ragbandit", "index", "build", "--corpus", "/tmp/corpus.jsonl")
    assert built.returncode == 0, built.stderr
    names = ("service", "worker", "learner")
    for name in names:
        compose.start(name)
    for name in names:
        compose.wait_healthy(name)
    with httpx.Client(base_url=f"http://127.0.0.1:{compose.port}", timeout=40, headers=headers) as http:
        result = http.post("/v1/answer?wait_s=30", json={"question": "What is the capital of France?"}).json()
        assert (result["status"], result["answer"]) == ("answered", "Paris")
        judged = {"decision_id": result["decision_id"], "label": ["Paris"]}
        assert http.post("/v1/feedback", json=judged).status_code == 202
    with httpx.Client(base_url=f"http://127.0.0.1:{compose.admin_port}", timeout=40, headers=headers) as http:
        give_up = time.monotonic() + 30
        while http.get("/v1/status").json()["counters"]["learned"] == 0:
            assert time.monotonic() < give_up, (compose.folder / "learner.log").read_text()[-2000:]
            time.sleep(0.1)
        http.headers.pop("authorization")
        assert http.get("/metrics").status_code == 200  # Prometheus of compose.yaml has no key
        assert http.get("/v1/status").status_code == 401
    for name in names:
        compose.running[name].send_signal(signal.SIGTERM)
        assert compose.running[name].wait(30) in (0, -signal.SIGTERM), name
