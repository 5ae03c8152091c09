"""The columns of a log: their names and Arrow types, and texts as hashed keys."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final, get_type_hints

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as compute

from ragbandit.router.offline.estimation import Keys
from ragbandit.shared.types import Reward

#: the fields for segments that are columns of a log; every other field for segments is a key of the context
FIELDS = ("tenant", "version", "policy")
REWARD = ("value", "quality", "cost", "weight", "minimum", "maximum")
#: parts of a reward that are texts; a file may lack the part judged_by
REWARD_WORDS = ("preset", "source", "judged_by")
#: name of the column that readers add, with the line of each row; no file has a column of this name
LINE: Final = "#line"
_TEXT, _NUMBER, _NUMBERS = pa.string(), pa.float64(), pa.list_(pa.float64())
_COLUMNS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("id", "text", "arm", "version", "tenant", "policy", "encoder_hash", "price"), _TEXT),
    **dict.fromkeys(("seed", "fault", "run_by"), _TEXT),
    **dict.fromkeys(("context", "facts", "budget", "aim"), _TEXT),  # JSON objects
    **dict.fromkeys(("propensity", "made_at", "floor", "cost_weight", "feedback_at", "learned_at"), _NUMBER),
    **dict.fromkeys(("arms", "allowed", "feedback_ids"), pa.list_(_TEXT)),
    **dict.fromkeys(("seq", LINE), pa.int64()),
    "explored": pa.bool_(),
    "features": pa.list_(pa.float32()),
}


def column_type(name: str) -> Any:
    """Arrow's type of a column. Columns that are not listed contain lists of numbers."""
    return _COLUMNS.get(name, _NUMBERS)


PARTS: Final[Mapping[str, Any]] = {
    part: _NUMBER if kind is float else _TEXT for part, kind in get_type_hints(Reward).items()
}
#: texts are hashed in words of 8 bytes; if no text has more than this number of words, all are padded to one width
_WORDS = 16
#: a text of more bytes than this is hashed alone, with BLAKE2b: in words, as shorter texts are, it would take minutes
_LONG = 1 << 17


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


def keys_of_bytes(text: npt.NDArray[np.uint8], *, lengths: npt.NDArray[np.int64]) -> Keys:
    """Hash concatenated texts of these lengths in bytes. A hash depends only on its text, on every machine."""
    words = -(-lengths // 8)
    if words.max(initial=0) <= _WORDS:
        return _keys_of_padded(text, lengths=lengths)
    long = np.flatnonzero(lengths > _LONG)
    if len(long):
        ends = np.cumsum(lengths)[long]
        texts = [text[end - size : end].tobytes() for end, size in zip(ends, lengths[long], strict=True)]
        digests = [hashlib.blake2b(long_text, digest_size=8).digest() for long_text in texts]
        short = np.setdiff1d(np.arange(len(lengths)), long)
        keys = np.empty(len(lengths), dtype=np.uint64)
        keys[long] = np.frombuffer(b"".join(digests), dtype="<u8")
        keys[short] = keys_of_bytes(text[np.repeat(lengths <= _LONG, lengths)], lengths=lengths[short])
        return keys
    # Texts of about the same length are padded together, so that one long text does not pad all others.
    keys = np.zeros(len(lengths), dtype=np.uint64)
    sizes = np.ceil(np.log2(np.maximum(words, _WORDS))).astype(np.intp)
    for size in np.unique(sizes):
        rows = sizes == size
        keys[rows] = _keys_of_padded(text[np.repeat(rows, lengths)], lengths=lengths[rows])
    return keys


def _keys_of_padded(text: npt.NDArray[np.uint8], *, lengths: npt.NDArray[np.int64]) -> Keys:
    words = -(-int(lengths.max(initial=0)) // 8)
    padded = np.zeros((len(lengths), 8 * words), dtype=np.uint8)
    padded[np.arange(8 * words) < lengths[:, None]] = text
    keys: Keys = mix_keys(np.zeros(len(lengths), dtype=np.uint64), lengths.astype(np.uint64))
    for number, word in enumerate(padded.view("<u8").T):
        # Padding must not change a key, since its width depends on the longest text of the batch.
        keys = np.where(8 * number < lengths, mix_keys(keys, word), keys)
    return keys


def mix_keys(keys: Keys, words: Keys) -> Keys:
    """Mix a word into each key, both of shape (n,), with the finaliser of splitmix64 (Steele, Lea and Flood 2014)."""
    keys = (keys + words) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(keys ^ (keys >> np.uint64(31)), dtype=np.uint64)
