"""Texts of Arrow columns: as questions are compared, and as hashed keys."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as compute

from ragbandit.router.offline.estimation import Keys
from ragbandit.router.offline.estimation.bandit_log import keys_of_bytes


def id_keys(ids: Any) -> Keys:
    text, lengths = bytes_of(ids)
    return keys_of_bytes(text, lengths=lengths)


def normalised(column: Any) -> Any:
    """Questions as they are hashed for folds: lower case, trimmed, runs of spaces as one space."""
    text = compute.utf8_trim_whitespace(compute.utf8_lower(column.cast(pa.large_string())))
    if compute.any(compute.match_substring(text, "  ")).as_py():
        text = compute.replace_substring_regex(text, " {2,}", " ")
    return text


def bytes_of(column: Any) -> "tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]":
    """Returns (concatenated UTF-8 of a text column without nulls, length of each row in bytes)."""
    plain = column.cast(pa.large_string())
    ends = np.frombuffer(plain.buffers()[1], dtype=np.int64)[plain.offset : plain.offset + len(plain) + 1]
    text = np.frombuffer(plain.buffers()[2] or b"", dtype=np.uint8)[int(ends[0]) : int(ends[-1])]
    return text, np.diff(ends)
