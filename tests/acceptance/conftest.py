"""A whole service of real processes, small and quick: real Redis, real RQ workers, real HTTP; scripted answers."""

import json
import os
import random
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from benchmarks.service_process import environment, free_port
from ragbandit.client import Client
from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.learning.status import read_status
from ragbandit.router.policies import untrained_policy
from ragbandit.router.queue.redis_server import RedisServer
from ragbandit.router.serving.setup.bootstrap import open_database
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.counters import row_counts, stored_counts
from ragbandit.shared.errors import NotReady, RagBanditError
from ragbandit.shared.types import PolicyLabel
from ragbandit.strategies.base import Passage
from ragbandit.strategies.retrievers.bm25 import build_index
from tests.support import command
from tests.support.forked import OTHER_HOST, Forked

ROOT = Path(__file__).parents[2]
PASSAGES = [
    Passage(id="france", title="France", text="Paris is the capital of France and lies on the Seine."),
    Passage(id="spain", title="Spain", text="Madrid is the capital of Spain and lies on the Manzanares."),
]


def bare() -> dict[str, str]:
    """The environment without what could bring this checkout or its settings along."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RAGBANDIT_"))}


def build_wheel(source: Path, folder: Path) -> Path:
    """A wheel of this tree."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, timeout=60, env=bare())
    return next(folder.glob("*.whl"))


def new_environment(folder: Path, *what: str) -> Path:
    """The Python of a new environment that has this, and the dependencies of the tests: their folder is put on the path
    without what its own .pth files would add.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    python = folder / "bin" / "python"
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    if what:
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--ignore-installed"]
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", *what], check=True, timeout=180, env=bare())
    return python


def until(condition, *, seconds=60.0, log=None):
    """Wait until the condition holds; what it gave. log: a file whose end is shown where it never does."""
    give_up = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < give_up, log.read_text()[-2000:] if log else "it took too long"
        time.sleep(0.05)
    return value


@contextmanager
def running_up(folder, *arguments, command=(sys.executable, "-m", "ragbandit"), environ=None):
    """`ragbandit up` in this folder until the end of the block, then interrupted; its output is in up.log."""
    environ = os.environ | {"PYTHONPATH": str(ROOT)} if environ is None else environ
    with (folder / "up.log").open("wb") as output:
        up = subprocess.Popen([*command, "up", *arguments], cwd=folder, env=environ, stdout=output, stderr=output)
    try:
        yield up
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(60)


def children_of(pid: int) -> list[int]:
    """The processes that this one has started."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def client_of_up(up, *, port, folder):
    """A client, as soon as the service is ready."""

    def is_ready():
        assert up.poll() is None, (folder / "up.log").read_text()
        return client.ready()

    with Client(f"http://127.0.0.1:{port}", timeout_s=40) as client:
        until(is_ready, seconds=150, log=folder / "up.log")
        yield client


class System:
    """Processes by name; any of them can be killed and started again. queues: those that have a worker. elsewhere:
    names of processes on another host, whose clock is 90 s ahead.
    """

    def __init__(
        self,
        folder: Path,
        *,
        apis: int = 1,
        queues: Sequence[str] = ("answer", "learn"),
        elsewhere: Sequence[str] = (),
        **more,
    ) -> None:
        self.folder, self.queues, self.elsewhere = folder, queues, elsewhere
        self.ports = {f"api-{n}": free_port() for n in range(1, apis + 1)}
        tree = {
            "data_dir": str(folder / "data"),
            "encoder": {"model": "hashing"},
            "generator": {"name": "scripted", "script": {"": "So the answer is: Paris."}, "script_s": 0.005},
            "workers": {"sweep_interval_s": 0.5, "concurrency": 4},
            "learning": {"lease_s": 2.0},
            "budget": {"seconds": 20.0},
        } | more
        self.config = folder / "config.yaml"
        self.config.write_text(yaml.safe_dump(tree))
        self.environment = environment()
        self.settings: Settings = load(self.config, environ=self.environment).settings
        build_index(PASSAGES, Path(self.settings.data_dir) / "indexes" / "default")
        open_database(self.settings).close()
        self.redis = RedisServer(self.settings.data_dir)
        self.processes: dict[str, Forked] = {}

    def start(self) -> None:
        self.redis.start()
        for name in [*self.ports, *self.queues]:
            self.start_process(name)
        self.wait_ready()

    def start_process(self, name: str) -> None:
        arguments = ["serve"] if name in self.ports else ["worker", "--queue", name]
        environ = dict(self.environment)
        if name in self.ports:
            environ["RAGBANDIT_SERVER__PORT"] = str(self.ports[name])
        command = [*arguments, "--config", str(self.config)]
        first, log = OTHER_HOST if name in self.elsewhere else "", self.folder / f"{name}.log"
        self.processes[name] = Forked(command, environment=environ, log=log, first=first)

    def kill(self, name: str) -> None:
        process = self.processes[name]
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    def restart(self, name: str) -> None:
        self.kill(name)
        self.start_process(name)

    def storm(self, names: Sequence[str], *, chance: random.Random, pauses: tuple[float, float] = (0.1, 1.0)) -> None:
        """Kill each of these processes after a pause, and start it again; wait until the service is ready."""
        for name in names:
            time.sleep(chance.uniform(*pauses))
            self.restart(name)
        self.wait_ready()

    def verified(self) -> dict:
        """The verdict of `verify --deep`: all is well. The counters are those of the rows."""
        verdict = json.loads(self.ragbandit("verify", "--deep", "--json").stdout)
        assert verdict["ok"], verdict["notes"]
        database = open_database(self.settings)
        with database.read() as connection:
            assert stored_counts(connection, label="main") == row_counts(connection, label="main")
        database.close()
        return verdict

    def client(self, name: str = "api-1", **more) -> Client:
        return Client(f"http://127.0.0.1:{self.ports[name]}", **more)

    def wait_ready(self) -> None:
        for name in self.ports:
            with self.client(name, timeout_s=5) as client:
                until(client.ready, log=self.folder / f"{name}.log")

    def wait_until(self, done, *, timeout_s: float = 60):
        """Wait until done(status) holds; returns the status, or fails showing the last one."""
        database = open_database(self.settings)
        ledger = Ledger(database, label=PolicyLabel(self.settings.policy.label))
        serving = untrained_policy(self.settings.policy_definition)
        rule = closing_rule(self.settings.learning)
        give_up = time.monotonic() + timeout_s
        try:
            while not done(state := read_status(ledger, serving=serving, rule=rule, now=time.time())):
                assert time.monotonic() < give_up, f"still {state}; logs in {self.folder}"
                time.sleep(0.1)
            return state
        finally:
            database.close()

    def ragbandit(self, *arguments: str) -> Result:
        """A verb of the command, in this process."""
        return command.run(*arguments, "--config", str(self.config))

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        self.redis.stop()


class Load:
    """Clients that ask and judge, and repeat requests under the same ids until they are answered. `decided` and
    `judged` contain what the service has confirmed, which must survive. pause_s: a client's pause
    between two questions, seconds; without one they keep all processors busy.
    """

    def __init__(self, system: System, *, threads: int = 4, pause_s: float = 0.0) -> None:
        self.system = system
        self.pause_s = pause_s
        self.decided: dict[str, dict] = {}
        self.judged: set[str] = set()
        self.faults: list[str] = []
        self._stop = threading.Event()
        names = list(system.ports)
        self._threads = [threading.Thread(target=self._run, args=(n, names[n % len(names)])) for n in range(threads)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a client hangs"

    def _run(self, number: int, api: str) -> None:
        chance = random.Random(number)
        count = 0
        with self.system.client(api, timeout_s=10) as client:
            while not self._stop.wait(self.pause_s):
                count += 1
                try:
                    self._one(client, f"load-{number}-{count}", chance)
                except Exception as error:
                    self.faults.append(f"{type(error).__name__}: {error}")
                    return

    def _one(self, client: Client, key: str, chance: random.Random) -> None:
        question = f"What is the capital of {chance.choice(['France', 'Spain'])}?"
        if chance.random() < 0.5:
            reply = self._stubborn(lambda: client.route(question, decision_id=key))
            self.decided[key] = reply
            steps = chance.randint(0, 3)
            self._stubborn(lambda: client.outcome(key, answer="Paris", steps=steps))
        else:
            reply = self._stubborn(lambda: client.answer(question, decision_id=key, wait_s=0.2))
            self.decided[key] = reply
        self._stubborn(lambda: client.feedback(key, feedback_id=f"fb-{key}", label=["Paris"]))
        self.judged.add(f"fb-{key}")

    @staticmethod
    def _stubborn(call):
        give_up = time.monotonic() + 45
        while True:
            try:
                return call()
            except NotReady:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.05)
            except RagBanditError as error:
                if error.status < 500 or time.monotonic() > give_up:
                    raise
                time.sleep(0.05)


@contextmanager
def running_systems(folder: Path):
    """A function that starts a System in this folder; all of them are stopped at the end of the block."""
    made = []

    def make(**more) -> System:
        system = System(folder, **more)
        made.append(system)
        system.start()
        return system

    with pytest.MonkeyPatch.context() as patch:
        for name in ("DATABASE_URL", "REDIS_URL"):
            patch.delenv(name, raising=False)
        try:
            yield make
        finally:
            for system in made:
                system.stop()


@pytest.fixture
def make_system(tmp_path):
    """Start a System; it is stopped at the end of the test."""
    with running_systems(tmp_path) as make:
        yield make
