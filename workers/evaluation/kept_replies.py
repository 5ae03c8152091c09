"""Replies of a model that is asked outside of arms. A reply to the same prompt of the same model is used again."""

import json
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Self

from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.files import append_private
from ragbandit.shared.json_lines import parsed
from ragbandit.strategies.base import Prompt
from ragbandit.workers.judge.booked_model import BookedModel


class KeptReplies:
    """Asks the model, for a `with` block. file: where replies are kept; None to keep them in memory only."""

    def __init__(self, model: BookedModel, *, file: Path | None) -> None:
        self.model, self.file = model, file
        self._known: dict[str, str] = {}
        self._stream: BinaryIO | None = None

    def __enter__(self) -> Self:
        if self.file is None:
            return self
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._stream = append_private(self.file)
        except OSError as error:
            message = f"the file cannot be opened: {error.strerror}"
            raise InvalidInput(message, field=str(self.file), remedy="name another file with --answers") from error
        try:
            self._read(self._stream)
        except BaseException:
            self._stream.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()

    async def ask(self, prompt: Prompt) -> str:
        """Returns the reply. Raises ArmFailed."""
        text = json.dumps([self.model.generator.name, asdict(prompt)], sort_keys=True, default=str)
        key = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        if key not in self._known:
            self._known[key] = await self.model.ask(prompt)
            if self._stream is not None:
                self._stream.write(json.dumps({"key": key, "reply": self._known[key]}).encode() + b"\n")
                self._stream.flush()
        return self._known[key]

    def _read(self, stream: BinaryIO) -> None:
        length = 0
        stream.seek(0)
        for line_number, line in enumerate(stream, start=1):
            if not line.endswith(b"\n"):  # an incomplete last line, which a killed process may leave
                break
            length += len(line)
            entry = parsed(line)
            if not (isinstance(entry.get("key"), str) and isinstance(entry.get("reply"), str)):
                where, remedy = f"{self.file}:{line_number}", "take the line out"
                raise InvalidInput("this line is not a reply of a model", field=where, remedy=remedy)
            self._known[entry["key"]] = entry["reply"]
        stream.truncate(length)
