"""JSONL, our own format: one record a line, in UTF-8, plain or gzipped by the file's name.

The least that a row needs, as people write it by hand:

    {"id": "q1", "arms": ["fast", "deep"], "pmf": [0.8, 0.2], "arm": "deep", "reward": 0.7}

`pmf` may be an object, arm -> probability. `reward` may be an object: {"quality": 1.0, "cost": 3, "weight": 0.05}.
`features` may be a list of numbers; we write base64 of little-endian float32. Keys that are not ours are kept in
`extra`: a candidate's pmf is one, a list aligned with `arms` or an object.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from ragbandit.router.offline.logs.records import BadRow, Defaults, Logged, Record, record_of
from ragbandit.router.offline.logs.row_checks import RowReader, bad_row
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.files import lines, new_lines, parsed
from ragbandit.shared.types import Features

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def read(path: str | Path, *, defaults: Defaults) -> Iterator[Logged | BadRow]:
    """The rows of the file, in its order. Raises InvalidInput for a file that is unreadable or empty."""
    reader = RowReader(defaults=defaults)
    for number, raw in lines(Path(path)):
        try:
            entry = dict(parsed(raw))
        except InvalidInput as error:
            yield bad_row(error, line=number)
        else:
            yield reader.row(entry, line=number)


def write(path: str | Path, rows: Iterable[Logged]) -> int:
    """Write the rows; how many. The file is there when all of it is. Raises InvalidInput."""
    count = 0
    with new_lines(Path(path)) as out:
        for row in rows:
            out.write(line_of(record_of(row)) + b"\n")
            count += 1
    return count


def line_of(record: Record) -> bytes:
    """The record as one line, its keys in their order; numbers come back as they were."""
    features = {"features": _base64(record["features"])} if "features" in record else {}
    return _ENCODER.encode(record | features).encode()


def _base64(features: Features | None) -> str | None:
    return None if features is None else base64.b64encode(np.asarray(features, dtype="<f4").tobytes()).decode()
