"""Replies of a model that is asked outside of arms. An equal prompt to the same model gets the stored reply."""

import json
import time
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

from ragbandit.additions.evaluation.booked_model import BookedModel
from ragbandit.additions.evaluation.kept_lines import AppendOnlyFile, is_amount
from ragbandit.strategies.base import Prompt

#: longest call of a model, seconds
_MOST_SECONDS: Final = 1e9


class ReplyCache:
    """Asks a model and stores its replies, for a `with` block. file: file of the replies; None to use only memory.

    `seconds` is the sum of the durations of all calls. A stored reply counts with the duration of its original call.
    """

    def __init__(self, model: BookedModel, *, file: Path | None) -> None:
        self.model, self.file, self.seconds = model, file, 0.0
        self._known: dict[str, tuple[str, float]] = {}
        self._lines: AppendOnlyFile | None = None

    def __enter__(self) -> Self:
        if self.file is None:
            return self
        self._lines = AppendOnlyFile(self.file)
        try:
            for number, entry in self._lines.read():
                key, reply, seconds = entry.get("key"), entry.get("reply"), entry.get("seconds", 0.0)
                if not (isinstance(key, str) and isinstance(reply, str) and is_amount(seconds, most=_MOST_SECONDS)):
                    why = "it needs the texts `key` and `reply`, and `seconds`"
                    raise self._lines.line_error(number, what="a reply of a model", why=why)
                self._known[key] = reply, float(seconds)
        except BaseException:
            self._lines.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._lines is not None:
            self._lines.close()

    async def ask(self, prompt: Prompt) -> str:
        """Returns the reply. Raises ArmFailed."""
        text = json.dumps([self.model.generator.name, asdict(prompt)], sort_keys=True, default=str)
        key = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        if key not in self._known:
            began = time.monotonic()
            reply = await self.model.ask(prompt)
            self._known[key] = reply, time.monotonic() - began
            if self._lines is not None:
                self._lines.add({"key": key, "reply": reply, "seconds": self._known[key][1]})
        reply, seconds = self._known[key]
        self.seconds += seconds
        return reply
