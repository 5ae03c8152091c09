"""The Open Bandit Pipeline's bandit_feedback (Saito et al. 2021) as .npz: `dict(np.load(FILE))` with position=None.

For n rounds over K arms: n_rounds, n_actions, context (n, d), action (n,), reward (n,), pscore (n,), pi_b (n, K, 1),
action_context (K, K) one-hot. OBP knows one set of arms for all rounds and nothing but numbers. What else a row holds
stands beside them under names of ours: `ragbandit_arms` (K,), `ragbandit_id`, `ragbandit_made_at`,
`ragbandit_quality`, `ragbandit_cost` (n,), and the rest (text, context, facts, each row's own order of arms, ...) as
JSON lines in the bytes of `ragbandit_rows`. Nothing is pickled, and nothing pickled is read.

Rows without features have zeros as context. A log from elsewhere must have pi_b, and gets the arms action_0, ...
All rows are in memory at once.
"""

import hashlib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ragbandit.router.errors import InvalidInput
from ragbandit.router.offline.logs.jsonl import line_of
from ragbandit.router.offline.logs.records import BadRow, Defaults, Logged, Record, record_of
from ragbandit.router.offline.logs.row_checks import RowReader, bad_row
from ragbandit.router.storage.files.json_lines import new_file, parsed

__all__ = ["feedback_of", "read", "write"]

Array = npt.NDArray[Any]
Arrays = dict[str, Array]

#: of a record: what the arrays hold
_HELD = ("id", "made_at", "arm", "pmf", "propensity", "features")


def read(path: str | Path, *, defaults: Defaults) -> Iterator[Logged | BadRow]:
    """The rows of the file, in its order. Raises InvalidInput for a file that is no such dict, or empty."""
    file = Path(path)
    arrays = _checked(_loaded(file), file=file)
    reader = RowReader(defaults=defaults)
    for number, found in enumerate(_records(arrays, file=file), start=1):
        yield bad_row(found, line=number) if isinstance(found, InvalidInput) else reader.row(found, line=number)


def write(path: str | Path, rows: Iterable[Logged]) -> int:
    """Write the rows; how many. The file is there when all of it is. Raises InvalidInput."""
    logged = list(rows)
    with new_file(Path(path)) as beside, beside.open("wb") as out:
        np.savez_compressed(out, **feedback_of(logged))  # type: ignore[arg-type] # its stub forgets the keywords
    return len(logged)


def feedback_of(rows: list[Logged]) -> Arrays:
    """The arrays of the file. Raises InvalidInput if the rows' features differ in number."""
    names = list(dict.fromkeys(arm for row in rows for arm in row.decision.arms))
    column = {name: place for place, name in enumerate(names)}
    pmf = np.zeros((len(rows), len(names)))
    for number, row in enumerate(rows):
        pmf[number, [column[arm] for arm in row.decision.arms]] = row.decision.pmf
    kept = b"".join(line_of(_kept(row)) + b"\n" for row in rows)
    return {
        "n_rounds": np.array(len(rows)),
        "n_actions": np.array(len(names)),
        "context": _context(rows),
        "action": np.array([column[row.decision.arm] for row in rows], dtype=np.int64),
        "reward": np.array([row.reward.value for row in rows]),
        "pscore": np.array([row.decision.propensity for row in rows]),
        "pi_b": pmf[:, :, None],
        "action_context": np.eye(len(names)),
        "ragbandit_arms": np.array(names, dtype=np.str_),
        "ragbandit_id": np.array([row.decision.id for row in rows], dtype=np.str_),
        "ragbandit_made_at": np.array([row.decision.made_at for row in rows]),
        "ragbandit_quality": np.array([row.reward.quality for row in rows]),
        "ragbandit_cost": np.array([row.reward.cost for row in rows]),
        "ragbandit_encoded": np.array([row.decision.features is not None for row in rows]),
        "ragbandit_rows": np.frombuffer(kept, dtype=np.uint8),
    }


def _kept(row: Logged) -> Record:
    record = record_of(row)
    reward = {key: value for key, value in record["reward"].items() if key not in ("value", "quality", "cost")}
    return {key: value for key, value in record.items() if key not in _HELD} | {"reward": reward}


def _context(rows: list[Logged]) -> Array:
    """The features, shape (n, d), float32; zeros where a row has none, d = 1 where no row has any."""
    widths = {row.decision.features.size for row in rows if row.decision.features is not None}
    if len(widths) > 1:
        raise InvalidInput(
            f"rows have {' and '.join(map(str, sorted(widths)))} numbers",
            field="features",
            remedy="export as jsonl, parquet or dsjson",
        )
    context = np.zeros((len(rows), max(widths, default=1)), dtype=np.float32)
    for number, row in enumerate(rows):
        if row.decision.features is not None:
            context[number] = row.decision.features
    return context


def _loaded(file: Path) -> Arrays:
    """The arrays that are there, but for those that only pickle can read: of OBP's keys, that is position = None."""
    try:
        with file.open("rb") as stream:  # NumPy forgets to close a zip that is cut short
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise InvalidInput("is one array", field=str(file), remedy="save the dict: np.savez(FILE, **feedback)")
            found: Arrays = {}
            for name in archive.files:
                try:
                    found[name] = archive[name]
                except ValueError:
                    if name != "position":
                        raise
            return found
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        # NumPy's own words for a ValueError advise to unpickle, which would run what is in the file.
        why = "it is no .npz, or holds objects" if isinstance(error, ValueError) else str(error)
        raise InvalidInput(
            f"cannot be read: {why}", field=str(file), remedy="save the dict: np.savez(FILE, **feedback)"
        ) from error


def _checked(arrays: Arrays, *, file: Path) -> Arrays:
    """The arrays, of shapes that fit each other. Raises InvalidInput naming the key."""

    def wrong(key: str, message: str, remedy: str) -> InvalidInput:
        return InvalidInput(message, field=f"{file} {key}", remedy=remedy)

    for key in ("action", "reward"):
        if key not in arrays or arrays[key].ndim != 1:
            raise wrong(key, "is missing or not of shape (n,)", "save the whole bandit_feedback")
    rounds = len(arrays["action"])
    if not rounds:
        raise wrong("action", "has no rows", "give a log with at least one decision")
    if "pi_b" not in arrays:
        raise wrong("pi_b", "is missing", "save the whole pmf, shape (n, K, 1): pscore alone cannot judge a candidate")
    if arrays["pi_b"].ndim != 3 or arrays["pi_b"].shape[2] != 1 or np.unique(arrays.get("position", 0)).size > 1:
        raise wrong("pi_b", f"has shape {arrays['pi_b'].shape}", "give a log of one position: (n, K, 1)")
    for key in ("reward", "pi_b", "context", "pscore", *(k for k in arrays if k in _OURS)):
        if key in arrays and (arrays[key].ndim == 0 or len(arrays[key]) != rounds):
            raise wrong(key, f"has shape {arrays[key].shape}", f"there are {rounds} actions: give a row for each")
    if arrays["action"].dtype.kind not in "iu":
        raise wrong("action", f"is of {arrays['action'].dtype}", "save whole numbers from 0")
    return arrays


#: of ours, one value a row
_OURS = ("ragbandit_id", "ragbandit_made_at", "ragbandit_quality", "ragbandit_cost", "ragbandit_encoded")


def _records(arrays: Arrays, *, file: Path) -> Iterator[Record | InvalidInput]:
    """The record of every row, or what is wrong with it."""
    pmfs = arrays["pi_b"][:, :, 0]
    names, kept = _own(arrays, file=file)
    names = names or [f"action_{place}" for place in range(pmfs.shape[1])]
    origin = "" if kept else _digest(arrays)
    for row, pmf in enumerate(pmfs):
        action = int(arrays["action"][row])
        if not 0 <= action < len(names):
            reason = f"{action} is not in 0 to {len(names) - 1}"
            yield InvalidInput(reason, field="action", remedy="count the actions from 0")
            continue
        said: Record = {"arm": names[action], "reward": arrays["reward"][row].item()}
        said["propensity"] = arrays["pscore"][row].item() if "pscore" in arrays else None
        if not kept:
            said["features"] = arrays["context"][row] if "context" in arrays else None
            yield said | {"id": f"obp-{origin}-{row + 1}", "arms": names, "pmf": pmf.tolist()}
            continue
        try:
            offer = dict(zip(names, pmf.tolist(), strict=True))
            yield said | _whole(parsed(kept[row]), arrays=arrays, row=row, offer=offer)
        except InvalidInput as error:
            yield error


def _own(arrays: Arrays, *, file: Path) -> tuple[list[str], list[bytes]]:
    """The arms' names and the rows' JSON in a file of ours; nothing in one from elsewhere. Raises InvalidInput."""
    if "ragbandit_rows" not in arrays:
        return [], []
    for key in (*_OURS, "ragbandit_arms", "context", "pscore"):
        if key not in arrays:
            raise InvalidInput("is missing", field=f"{file} {key}", remedy="keep all that the export wrote")
    kept, names = bytes(arrays["ragbandit_rows"]).splitlines(), arrays["ragbandit_arms"].tolist()
    if len(kept) != len(arrays["action"]):
        reason = f"has {len(kept)} rows for {len(arrays['action'])} actions"
        raise InvalidInput(reason, field=f"{file} ragbandit_rows", remedy="cut all arrays alike")
    if len(names) != arrays["pi_b"].shape[1]:
        raise InvalidInput("does not fit pi_b", field=f"{file} ragbandit_arms", remedy="name every arm")
    return names, kept


def _whole(kept: Record, *, arrays: Arrays, row: int, offer: Mapping[str, float]) -> Record:
    """Fields of a row that OBP's arrays do not hold."""
    arms = kept.get("arms")
    if not isinstance(arms, list) or not all(isinstance(arm, str) and arm in offer for arm in arms):
        raise InvalidInput("are not among ragbandit_arms", field="arms", remedy="keep all that the export wrote")
    parts = kept.get("reward")
    if not isinstance(parts, dict):
        raise InvalidInput("is no object", field="reward", remedy="keep all that the export wrote")
    held = {key: arrays[f"ragbandit_{key}"][row].item() for key in ("quality", "cost")}
    return kept | {
        "id": str(arrays["ragbandit_id"][row]),
        "made_at": arrays["ragbandit_made_at"][row].item(),
        "pmf": [offer[arm] for arm in arms],
        "reward": parts | held | {"value": arrays["reward"][row].item()},
        "features": arrays["context"][row] if bool(arrays["ragbandit_encoded"][row]) else None,
    }


def _digest(arrays: Arrays) -> str:
    """Names the log, so that the ids made for its rows are the same whenever it is read, and no other log's."""
    made = hashlib.sha256()
    for key in ("action", "reward", "pi_b"):
        made.update(np.ascontiguousarray(arrays[key]).tobytes())
    return made.hexdigest()[:16]
