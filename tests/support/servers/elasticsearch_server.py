"""One Elasticsearch for all processes that test: it takes longer to start than its tests do."""

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.shared_record import shared_record

PROGRAM = Path(__file__).parents[4] / "shared" / "elasticsearch" / "start"


@contextlib.contextmanager
def shared_server(file: Path) -> Iterator[str]:
    """URL of the server recorded in `file`. The first user starts it, the last one stops it. Skips if no server can be
    started.
    """
    with shared_record(file) as record:
        if not record.get("users"):
            record.update(_start(), users=0)
        record["users"] += 1
    try:
        yield record["url"]
    finally:
        with shared_record(file) as record:
            record["users"] -= 1
            if not record["users"]:
                subprocess.run([PROGRAM.with_name("stop"), record["folder"]], capture_output=True, timeout=60)
                shutil.rmtree(record["folder"], ignore_errors=True)


def _start() -> dict[str, Any]:
    if not PROGRAM.exists():
        pytest.skip("no Elasticsearch: run one (docker run -e discovery.type=single-node ...), set ELASTICSEARCH_URL")
    folder = Path(tempfile.mkdtemp(prefix="ragbandit-es-", dir="/tmp"))
    folder.chmod(0o755)
    done = subprocess.run([PROGRAM, folder], capture_output=True, text=True, timeout=110)
    if done.returncode != 0:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"Elasticsearch did not start: {done.stderr.strip()[-300:]}")
    return {"url": done.stdout.strip(), "folder": str(folder)}
