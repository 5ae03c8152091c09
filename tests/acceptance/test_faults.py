"""Faults around the processes, under load: the database restarts or freezes, clocks jump, the disk is
full. Everything that was confirmed to clients is compared with the store afterwards.

`make test-faults` runs them: they take minutes.
"""

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.schema import migrate
from tests.conftest import PostgresServer
from tests.support.servers.postgres_pair import PostgresPair

from .conftest import Load, System
from .test_crashes import settled

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(300)]

#: seconds within which everything works again after a fault has passed
HEALED_S = 10.0


@pytest.fixture
def own_postgres():
    """A PostgreSQL that a test may kill."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.stop()


def database_in(server: PostgresServer, *, port: int | None = None) -> str:
    """The URL of a new database with our schema; through a proxy on this port."""
    name = server.new_database()
    database = Database(server.url(name))
    migrate(database)
    database.close()
    return server.url(name) if port is None else f"postgresql+psycopg://postgres@127.0.0.1:{port}/{name}"


def works_again(system: System, *, within_s: float) -> None:
    """A route, an outcome and feedback are accepted within this many seconds."""
    began = time.monotonic()
    with system.client(timeout_s=within_s) as client:
        while True:
            try:
                key = client.route("Is it back?", arms=["single_step"])["decision_id"]
                break
            except Exception:
                assert time.monotonic() - began < within_s, "not healed in time"
                time.sleep(0.1)
    assert key


def test_the_database_is_killed_and_restarted(make_system, own_postgres):
    """Five kill -9 of PostgreSQL with all its processes under load lose nothing."""
    system = make_system(apis=2, database_url=database_in(own_postgres))
    with Load(system) as load:
        for _ in range(5):
            time.sleep(1.5)
            own_postgres.signal(signal.SIGKILL)
            time.sleep(0.5)
            own_postgres.run()
        works_again(system, within_s=HEALED_S)
        time.sleep(1)
    assert len(load.decided) > 50
    settled(system, load)


def test_the_database_freezes(make_system, own_postgres):
    """PostgreSQL that is stopped for ten seconds holds callers up or has them come again, and loses nothing."""
    system = make_system(database_url=database_in(own_postgres))
    with Load(system) as load:
        time.sleep(1.5)
        own_postgres.signal(signal.SIGSTOP)
        time.sleep(10)
        own_postgres.signal(signal.SIGCONT)
        works_again(system, within_s=HEALED_S)
        time.sleep(1)
    settled(system, load)


@pytest.fixture
def pair():
    with contextlib.closing(PostgresPair()) as servers:
        with contextlib.closing(Database(servers.address)) as database:
            migrate(database)
        yield servers


def test_a_standby_takes_over(pair, make_system):
    """Three times under load PostgreSQL crashes or ends, comes back as a server that only reads, and a synchronous
    standby gets its address. Nothing that was acknowledged is lost, and no row is there twice.
    """
    system = make_system(apis=2, database_url=pair.address)
    with Load(system) as load:
        for crash in (True, False, True):
            time.sleep(1.5)
            pair.demote(crash=crash)
            time.sleep(2)
            pair.promote()
            works_again(system, within_s=HEALED_S)
            pair.rejoin()
        time.sleep(1)
    assert len(load.decided) > 50
    settled(system, load)


@pytest.fixture(scope="session")
def shifted_clock(tmp_path_factory):
    """A library that shifts the clock of a process that preloads it."""
    source = Path(__file__).parents[1] / "support" / "servers" / "shifted_clock.c"
    library = tmp_path_factory.mktemp("clock") / "shifted_clock.so"
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no gcc to build the shifted clock with")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"], check=True)
    return library


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_clocks_jump(make_system, request, tmp_path, shifted_clock, database):
    """The clocks of service and learner jump by an hour; the learner dies an hour ahead: nothing is held up."""
    url = database_in(request.getfixturevalue("own_postgres")) if database == "postgresql" else None
    system = make_system(**({"database_url": url} if url else {}))
    offsets = {name: tmp_path / f"{name}.shift" for name in ("api-1", "learn")}
    with Load(system) as load:
        for name, file in offsets.items():
            file.write_text("0")
            system.kill(name)
            system.environment |= {"LD_PRELOAD": str(shifted_clock), "SHIFTED_CLOCK": str(file)}
            system.start_process(name)
        for name in ("LD_PRELOAD", "SHIFTED_CLOCK"):
            del system.environment[name]
        system.wait_ready()
        for shift in (3600, -3600, 0, 3600):
            for file in offsets.values():
                file.write_text(str(shift))
            time.sleep(1.5)
        system.kill("learn")
        offsets["learn"].write_text("0")
        offsets["api-1"].write_text("0")
        system.start_process("learn")
        time.sleep(1)
    settled(system, load)


@contextlib.contextmanager
def mounted(folder: Path, *, megabytes: int) -> Iterator[None]:
    """A file system of this size on the folder."""
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 24 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with mounted(folder, megabytes=24):
        yield folder


@pytest.fixture
def postgres_on_a_small_disk():
    """A PostgreSQL whose data are on a disk of 200 MB, and the folder of its data."""
    server = PostgresServer()
    data = server.folder / "data"
    data.mkdir()
    with mounted(data, megabytes=200):
        if server.folder.stat().st_uid:
            shutil.chown(data, server.folder.stat().st_uid, server.folder.stat().st_gid)
        try:
            server.start()
            yield server, data
        finally:
            server.stop()


def fill(file: Path) -> None:
    """Write until the disk takes no more."""
    with file.open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(b"x" * 4096):
            pass


def full_and_free_again(system: System, load: Load, *, filler: Path, freed: Callable[[], None]) -> None:
    """Fill the disk until /ready reports it, and free it; everything goes on. freed: the operator's action then."""
    time.sleep(2)
    fill(filler)
    give_up = time.monotonic() + 30
    with system.client(timeout_s=5) as client:
        while client.ready():  # until the last pages are used up
            assert time.monotonic() < give_up, "/ready says that all is well on a full disk"
            time.sleep(0.2)
    time.sleep(3)
    began = time.monotonic()
    filler.unlink()
    freed()
    works_again(system, within_s=HEALED_S)
    system.wait_ready()
    assert time.monotonic() - began < HEALED_S
    told = len(load.decided)
    time.sleep(2)
    assert len(load.decided) > told


def test_the_disk_is_full(make_system, small_disk):
    """While the disk is full, writes get 503 and /ready reports it; with space everything goes on."""
    # Few features: the snapshots of the default fill this disk by themselves.
    system = make_system(data_dir=str(small_disk / "data"), encoder={"model": "hashing", "dimension": 16})
    with Load(system) as load:
        full_and_free_again(system, load, filler=small_disk / "filler", freed=lambda: None)
    settled(system, load)


def test_the_disk_of_postgresql_is_full(make_system, postgres_on_a_small_disk):
    """The same on PostgreSQL, which ends where its log of writes finds no space, and is started again with space."""
    server, data = postgres_on_a_small_disk
    system = make_system(database_url=database_in(server), encoder={"model": "hashing", "dimension": 16})

    def start_again() -> None:
        if server.ended:
            server.run()

    with Load(system) as load:
        full_and_free_again(system, load, filler=data / "filler", freed=start_again)
    settled(system, load)
