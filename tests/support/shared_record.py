"""A small JSON file that several processes that test read and change, one at a time."""

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def shared_record(file: Path) -> Iterator[dict[str, Any]]:
    """The file's content, for one process at a time. Changes are written back unless an error is raised."""
    with file.open("a+", encoding="utf-8") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        opened.seek(0)
        record = json.loads(opened.read() or "{}")
        yield record
        opened.truncate(0)
        json.dump(record, opened)
