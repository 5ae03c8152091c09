"""A form of logs: tickets of a help desk become questions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar


class OwnLog:
    keys: ClassVar[Sequence[str]] = ("ticket_number",)

    @staticmethod
    def read(record: Mapping[str, Any], /) -> Iterable[Mapping[str, Any]] | None:
        if "ticket_number" not in record:
            return None
        texts = [part["body"] for part in record["articles"]]
        return [{"id": record["ticket_number"], "question": texts[0], "answer": texts[-1] if len(texts) > 1 else None}]
