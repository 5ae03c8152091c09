"""Writes the probabilities of candidates that learned the log, so that users can inspect and judge them again."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ragbandit.router.offline.logs import form_of_name
from ragbandit.router.offline.logs.columns import column_type
from ragbandit.router.offline.logs.jsonl import json_line
from ragbandit.router.offline.replay.opening import MemoryLog
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.json_lines import new_file, new_lines


def check_pmf_file(path: str | Path, *, has_learners: bool) -> None:
    """Raise InvalidInput if the file's ending is unknown, or if none of the candidates learns."""
    form_of_name(path)
    if not has_learners:
        message = "no candidate learns: the log has the probabilities of the others"
        raise InvalidInput(message, field=str(path), remedy="name a policy with --policy, or leave out --write-pmfs")


def write_pmfs(path: str | Path, log: MemoryLog, *, names: Sequence[str]) -> None:
    """Write the column of each candidate in `names`, with the id, arms, drawn arm and logged pmf of each row.

    The file's ending chooses the form: JSON Lines or Parquet. Probabilities are aligned with the row's `arms`. An
    error leaves the file at `path` unchanged. Raises InvalidInput.
    """
    rows = _rows(log, names=names)
    if form_of_name(path) == "jsonl":
        with new_lines(Path(path)) as out:
            out.writelines(json_line(row) + b"\n" for row in rows)
        return
    kinds = {name: column_type(name) for name in ("id", "arms", "arm", "pmf")}
    kinds |= dict.fromkeys(names, column_type("pmf"))
    with new_file(Path(path)) as beside:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=pa.schema(kinds)), beside, compression="zstd")


def _rows(log: MemoryLog, *, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    places = {arm: place for place, arm in enumerate(log.log.arms)}
    columns = {"pmf": log.log.pmf, **{name: log.log.pmfs[name] for name in names}}
    for number, row in enumerate(log.rows):
        arms = row.decision.arms
        own = np.array([places[arm] for arm in arms])
        pmfs = {name: column[number, own].tolist() for name, column in columns.items()}
        yield {"id": row.decision.id, "arms": list(arms), "arm": row.decision.arm, **pmfs}
