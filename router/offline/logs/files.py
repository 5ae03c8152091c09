"""Format of a log file, told by its first bytes or its first row."""

import zlib
from pathlib import Path

from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.files.json_lines import open_binary, parsed

__all__ = ["check_format"]

#: first bytes -> format
_MAGIC = {b"PAR1": "parquet"}
#: keys that the rows of one format have and those of the other do not
_KEYS = {"jsonl": {"arm", "pmf"}, "dsjson": {"a", "c", "p"}}
#: bytes of a first row that are read to tell its format
_GLANCE = 1 << 20


def check_format(path: Path, *, said: str) -> None:
    """Raises InvalidInput for a file whose beginning is recognised as another format than `said`."""
    found = _begins_like(path)
    if found not in (None, said):
        raise InvalidInput(
            f"is no {said} file: it begins like {found}", field=str(path), remedy=f"give --format {found}"
        )


def _begins_like(path: Path) -> str | None:
    """The format that the first bytes or the first row tell, or None."""
    if not path.is_file():  # what is read from a pipe is gone
        return None
    try:
        with path.open("rb") as stream:
            begin = stream.read(4)
        if begin in _MAGIC:
            return _MAGIC[begin]
        with open_binary(path) as stream:
            first = next((line for line in iter(lambda: stream.readline(_GLANCE), b"") if line.strip()), b"")
        found = parsed(first.removeprefix(b"\xef\xbb\xbf"))
    except (OSError, EOFError, zlib.error, InvalidInput):
        return None  # the reader says it better
    like = [name for name, keys in _KEYS.items() if keys <= set(found)]
    return like[0] if len(like) == 1 else None
