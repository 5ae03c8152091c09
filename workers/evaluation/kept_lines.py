"""A JSONL file to which a command appends its results, and from which an interrupted command continues."""

import fcntl
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.files import append_private
from ragbandit.shared.json_lines import parsed

OTHER_FILE: Final = "name another file with --answers"


class KeptLines:
    """Lines of one process at a time. Raises InvalidInput if the file cannot be opened, ConfigError if it is in use."""

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
        """Yield (number of the line, its object). At the end an incomplete last line of a killed process is cut off.

        Raises InvalidInput if a whole line is not a JSON object.
        """
        length = 0
        self._stream.seek(0)
        for number, line in enumerate(self._stream, start=1):
            if not line.endswith(b"\n"):
                break
            length += len(line)
            try:
                entry: dict[str, Any] = parsed(line)
            except InvalidInput as error:
                raise self.foreign(number, what="a line of an evaluation") from error
            yield number, entry
        self._stream.truncate(length)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Raises InvalidInput if the line cannot be written."""
        try:
            self._stream.write(json.dumps(entry, default=str).encode() + b"\n")
            self._stream.flush()
        except OSError as error:
            raise self._fault(f"the file cannot be written: {error.strerror}") from error

    def close(self) -> None:
        self._stream.close()

    def foreign(self, number: int, *, what: str) -> InvalidInput:
        """The error for a line of another kind of file."""
        message, where = f"this line is not {what}", f"{self.file}:{number}"
        return InvalidInput(message, field=where, remedy=f"take the line out, or {OTHER_FILE}")

    def _fault(self, message: str) -> InvalidInput:
        return InvalidInput(message, field=str(self.file), remedy=OTHER_FILE)
