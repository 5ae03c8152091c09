"""A JSONL file to which a command appends its results, and from which an interrupted command continues."""

import fcntl
import json
import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.files import append_private
from ragbandit.shared.json_lines import decode_line, each_key_once

OTHER_FILE: Final = "name another file with --answers"
#: beginning of every line; an incomplete last line that begins otherwise shows that the file is not an evaluation's
_BEGINNING: Final = b'{"key": "'
#: maximum bytes of a line, enough for the play of a policy on some millions of questions
_LONGEST: Final = 1 << 28


def _finite_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.40} is not a finite number")
    return number


def is_amount(value: object, *, most: float) -> bool:
    """Whether a JSON value is a number in [0, most]."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most


def first_fault(error: ValidationError) -> str:
    """Place and description of the first fault that a validation found."""
    fault = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=each_key_once, parse_float=_finite_number, parse_constant=_finite_number
)


class AppendOnlyFile:
    """A JSONL file under a lock, so that only one process appends. Raises InvalidInput if it cannot be opened,
    ConfigError if it is in use.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._stream = append_private(file)
        except OSError as error:
            raise self._fault(f"the file cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._stream.close()
            message = "another evaluation writes its answers to this file"
            raise ConfigError(message, field=str(file), remedy=f"wait for it, or {OTHER_FILE}") from error

    def read(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (number of the line, its object). At the end, cuts off an incomplete last line of a killed process.

        Raises InvalidInput if a whole line is not a JSON object with finite numbers, or if an incomplete last line does
        not begin like a line of an evaluation.
        """
        length, what = 0, "a line of an evaluation"
        self._stream.seek(0)
        for number, line in enumerate(iter(partial(self._stream.readline, _LONGEST), b""), start=1):
            if not line.endswith(b"\n"):
                if len(line) == _LONGEST:
                    raise self.line_error(number, what=what, why=f"it has more than {_LONGEST >> 20} MiB")
                if not (line.startswith(_BEGINNING) or _BEGINNING.startswith(line)):
                    raise self.line_error(number, what=what, why="it has no end and no key")
                break
            length += len(line)
            try:
                entry = _DECODER.decode(decode_line(line))
                if not isinstance(entry, dict):
                    raise ValueError(f"it is a {type(entry).__name__}")
            except (InvalidInput, ValueError, RecursionError) as error:
                raise self.line_error(number, what=what, why=str(error)) from error
            yield number, entry
        self._stream.truncate(length)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Append a line. Raises InvalidInput if it cannot be written."""
        try:
            self._stream.write(json.dumps(entry, default=str).encode() + b"\n")
            self._stream.flush()
        except OSError as error:
            raise self._fault(f"the file cannot be written: {error.strerror}") from error

    def close(self) -> None:
        self._stream.close()

    def line_error(self, number: int, *, what: str, why: str) -> InvalidInput:
        """The error for a line of another kind of file, or with wrong values. why: the fault of the line."""
        message, where = f"this line is not {what}: {why:.300}", f"{self.file}:{number}"
        return InvalidInput(message, field=where, remedy=f"take the line out, or {OTHER_FILE}")

    def _fault(self, message: str) -> InvalidInput:
        return InvalidInput(message, field=str(self.file), remedy=OTHER_FILE)
