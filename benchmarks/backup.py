"""Size and time of a backup and of its restore: `python -m benchmarks.backup [DECISIONS]`.

DECISIONS decisions (20,000) that workers answered, judged and learned, with 256 features, in SQLite and in PostgreSQL
(the wheel of the tests). Each backup is restored into both. The time of a restore has no `verify` in it.
"""

import importlib
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.before_after.bytes import fill
from ragbandit.router.config.settings import Settings
from ragbandit.router.retention.places import no_progress
from ragbandit.router.retention.restoring import check_backup, restore_backup
from ragbandit.router.retention.taking import take_backup
from ragbandit.router.storage.sql.database import Database

DECISIONS = 20_000


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - began:.2f} s")


def main(count: int = DECISIONS) -> None:
    """Print size and times."""
    server = importlib.import_module("tests.conftest").PostgresServer()
    server.start()
    try:
        with tempfile.TemporaryDirectory(prefix="ragbandit-backup-") as folder:
            stores = {name: Settings(data_dir=f"{folder}/{name}") for name in ("sqlite", "postgresql")}
            server.execute("CREATE DATABASE live")
            stores["postgresql"] = stores["postgresql"].model_copy(update={"database_url": server.url("live")})
            for name, settings in stores.items():
                fill(settings.database, count=count)
                database = Database(settings.database)
                with _timed(f"{count:,} decisions, backup of {name}"):
                    made = take_backup(
                        settings,
                        database=database,
                        to=f"{folder}/copy-{name}",
                        config=[],
                        version="",
                        now=time.time(),
                        with_indexes=True,
                        progress=no_progress,
                    )
                database.close()
                print(f"  {made.bytes / 1e6:,.1f} MB, {made.bytes / count:,.0f} bytes a decision")
                for target in stores:
                    server.execute(f"CREATE DATABASE from_{name}")
                    again = Settings(
                        data_dir=f"{folder}/{target}-from-{name}",
                        database_url=server.url(f"from_{name}") if target == "postgresql" else None,
                    )
                    source = f"{folder}/copy-{name}"
                    with _timed(f"  restored into {target}"):
                        manifest = check_backup(source, progress=no_progress)
                        restore_backup(
                            source,
                            settings=again,
                            manifest=manifest,
                            actor="benchmark",
                            now=time.time(),
                            progress=no_progress,
                        )
                    server.execute(f"DROP DATABASE from_{name} WITH (FORCE)")
                    assert Path(again.data_dir).is_dir()
    finally:
        server.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
