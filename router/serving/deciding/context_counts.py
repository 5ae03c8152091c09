"""Counts of what callers send as context: a key that is misspelt, or left out by one caller of many, shows here."""

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Final

from ragbandit.router.config.context_schema import ContextSchema
from ragbandit.shared.types import Query

#: of a declared key: it came with a value that has a column of its own, with one that has none, or not at all
KINDS: Final = ("given", "other", "missing")


class ContextCounts:
    """Counts of the questions that were accepted. Safe to use from several threads."""

    def __init__(self, schema: ContextSchema) -> None:
        self._schema = {key: one for key, one in schema.items() if not one.is_own}
        self._lock = threading.Lock()
        self._declared: Counter[tuple[str, str]] = Counter()
        #: values under keys that are not declared; their names are the callers', and no end of them
        self.undeclared = 0

    def add(self, query: Query) -> None:
        """Count a question."""
        context = query.context
        kinds = [(key, _kind(context.get(key), known=one.categories)) for key, one in self._schema.items()]
        undeclared = sum(key not in self._schema for key in context)
        with self._lock:
            self._declared.update(kinds)
            self.undeclared += undeclared

    def declared(self) -> Mapping[tuple[str, str], int]:
        """(key, one of KINDS) -> questions."""
        with self._lock:
            return {(key, kind): self._declared[key, kind] for key in self._schema for kind in KINDS}


def _kind(value: object, *, known: tuple[str, ...] | None) -> str:
    if value is None:
        return "missing"
    return "given" if known is None or value in known else "other"
