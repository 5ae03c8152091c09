"""A rollout: this release and a made next one serve one PostgreSQL and one Redis under load while hosts are replaced.

The next one is this tree with a migration more (tests/support/next_release.py).
"""

import json
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest
import yaml

from benchmarks.service_process import free_port
from ragbandit.router.storage.sql.tables import SCHEMA_REVISION
from tests.support.next_release import NEXT, copy_of_tree

from .conftest import ROOT, bare, build_wheel, new_environment


def installed(source: Path, folder: Path) -> Path:
    """The command of a wheel of this tree, in an environment of its own."""
    return new_environment(folder / "venv", str(build_wheel(source, folder / "dist"))).with_name("ragbandit")


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    """The commands of this release, and of the next one."""
    folder = tmp_path_factory.mktemp("releases")
    source = copy_of_tree(folder / "source")
    return {"old": installed(ROOT, folder / "old"), "new": installed(source, folder / "new")}


class Rollout:
    """Processes of both releases on one database, and what the services in front are."""

    def __init__(self, folder: Path, *, database: str, redis: str, releases: dict[str, Path]) -> None:
        self.folder, self.releases = folder, releases
        self.ports = {"old": free_port(), "new": free_port()}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        #: releases that get requests, as behind a load balancer
        self.live: list[str] = ["old"]
        self.environment = bare() | {"DATABASE_URL": database, "REDIS_URL": redis, "HF_HUB_OFFLINE": "1"}
        tree = {
            "data_dir": str(folder / "data"),
            "encoder": {"model": "hashing"},
            "generator": {"name": "scripted", "script": {"": "So the answer is: Paris."}, "script_s": 0.005},
            "workers": {"sweep_interval_s": 0.5, "concurrency": 4},
            "learning": {"lease_s": 2.0, "snapshot_interval_s": 0.5},
            "server": {"max_wait_s": 30.0},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(tree))

    def call(self, release: str, *arguments: str) -> str:
        command = [self.releases[release], *arguments, "--config", "config.yaml"]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, release: str, what: str) -> None:
        arguments = ["serve", "--port", str(self.ports[release])]
        if what != "serve":
            arguments = ["worker", "--queue", what]
        with (self.folder / f"{release}-{what}.log").open("ab") as output:
            self.processes[f"{release}-{what}"] = subprocess.Popen(
                [self.releases[release], *arguments, "--config", "config.yaml"],
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=output,
            )

    def wait_ready(self, release: str) -> None:
        give_up = time.monotonic() + 60
        while True:
            try:
                if httpx.get(f"http://127.0.0.1:{self.ports[release]}/ready", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert time.monotonic() < give_up, (self.folder / f"{release}-serve.log").read_text()[-2000:]
            time.sleep(0.1)

    def stop(self, name: str) -> int:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        return process.wait(40)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(10)


class Traffic:
    """Clients that ask whichever release is live, once, and keep every status and what was confirmed."""

    def __init__(self, rollout: Rollout, *, threads: int = 4) -> None:
        self.rollout = rollout
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.decided: dict[str, str] = {}
        self.judged: set[str] = set()
        self.faults: list[str] = []
        #: longest request, seconds
        self.slowest = 0.0
        self._stop = threading.Event()
        #: how many calls are under way at each release
        self.under_way: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(threads)]

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def more(self, count: int) -> None:
        """Wait for this many further decisions."""
        wanted, give_up = len(self.decided) + count, time.monotonic() + 90
        while len(self.decided) < wanted:
            assert not self.faults, self.faults
            assert time.monotonic() < give_up
            time.sleep(0.05)

    def take_off(self, release: str) -> None:
        """Send no more requests to a release, and wait for those in progress."""
        with self._lock:
            self.rollout.live.remove(release)
        while self.under_way[release]:
            time.sleep(0.05)

    def _run(self, number: int) -> None:
        chance, count = random.Random(number), 0
        with httpx.Client(timeout=60) as http:
            while not self._stop.is_set():
                count += 1
                try:
                    self._one(http, f"load-{number}-{count}", chance)
                except Exception as error:
                    self.faults.append(f"{type(error).__name__}: {error}")
                    return

    def _post(self, http: httpx.Client, path: str, body: dict, *, chance: random.Random) -> dict:
        with self._lock:
            release = chance.choice(self.rollout.live)
            self.under_way[release] += 1
        began = time.monotonic()
        try:
            reply = http.post(f"http://127.0.0.1:{self.rollout.ports[release]}{path}", json=body)
        finally:
            with self._lock:
                self.under_way[release] -= 1
                self.slowest = max(self.slowest, time.monotonic() - began)
        self.statuses[release, reply.status_code] += 1
        if reply.status_code >= 400:
            raise RuntimeError(f"{release} {path}: {reply.status_code} {reply.text[:300]}")
        return dict(reply.json())

    def _one(self, http: httpx.Client, key: str, chance: random.Random) -> None:
        asked = {"question": f"What is the capital of {chance.choice(['France', 'Spain'])}?", "decision_id": key}
        if chance.random() < 0.5:
            self.decided[key] = self._post(http, "/v1/route", asked, chance=chance)["arm"]
            outcome = {"decision_id": key, "answer": "Paris", "steps": chance.randint(0, 3)}
            self._post(http, "/v1/outcomes", outcome, chance=chance)
        else:
            self.decided[key] = self._post(http, "/v1/answer?wait_s=0.2", asked, chance=chance)["arm"]
        judged = {"decision_id": key, "feedback_id": f"fb-{key}", "label": ["Paris"]}
        self._post(http, "/v1/feedback", judged, chance=chance)
        self.judged.add(f"fb-{key}")


@pytest.fixture
def rollout(tmp_path, postgres, redis_server, releases):
    (tmp_path / "corpus.jsonl").write_text(
        json.dumps({"id": "france", "title": "France", "text": "Paris is the capital of France."})
        + "\n"
        + json.dumps({"id": "spain", "title": "Spain", "text": "Madrid is the capital of Spain."})
    )
    name = postgres.new_database()
    made = Rollout(tmp_path, database=postgres.url(name), redis=redis_server, releases=releases)
    yield made
    made.end()
    postgres.drop(name)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rolling_upgrade_loses_nothing(rollout):
    """Old processes go on while the schema moves beneath them, new ones join, old ones leave: no 5xx, nothing lost."""
    assert SCHEMA_REVISION in rollout.call("old", "migrate")
    rollout.call("old", "index", "build", "--corpus", "corpus.jsonl")
    for what in ("serve", "answer", "learn"):
        rollout.start("old", what)
    rollout.wait_ready("old")
    with Traffic(rollout) as load:
        load.more(100)
        migrated = json.loads(rollout.call("new", "migrate", "--pre", "--json"))
        assert migrated["revision"] == NEXT
        load.more(100)  # by the old release on the new schema
        rollout.start("new", "serve")
        rollout.wait_ready("new")
        rollout.live.append("new")
        load.more(100)  # by both, with the old workers and the old learner
        for what in ("answer", "learn"):
            rollout.start("new", what)
        load.more(200)
        load.take_off("old")
        endings = {what: rollout.stop(f"old-{what}") for what in ("serve", "answer", "learn")}
        load.more(100)
    assert load.faults == []
    assert set(endings.values()) <= {0, -signal.SIGTERM}, endings  # the service ends by the signal that it got
    assert {status for _, status in load.statuses} <= {200, 202}
    give_up = time.monotonic() + 60
    while True:
        state = json.loads(rollout.call("new", "status", "--json"))
        if state["counters"]["learned"] == len(load.judged) and not state["behind"]:
            break
        assert time.monotonic() < give_up, state
        time.sleep(0.5)
    assert state["counters"]["decided"] == len(load.decided)
    with httpx.Client(base_url=f"http://127.0.0.1:{rollout.ports['new']}", timeout=10) as http:
        for key, arm in load.decided.items():
            assert http.get(f"/v1/decisions/{key}").json()["arm"] == arm
    assert NEXT in rollout.call("new", "migrate")
    verdict = json.loads(rollout.call("new", "verify", "--deep", "--json"))
    assert verdict["ok"], verdict["notes"]
    assert verdict["updates"] == len(load.judged)
    statuses = {f"{r} {s}": n for (r, s), n in sorted(load.statuses.items())}
    facts = {"decided": len(load.decided), "slowest_s": load.slowest, **statuses}
    (rollout.folder / "seen.json").write_text(json.dumps(facts))
