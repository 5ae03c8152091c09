"""SQL statements that are compiled once for all databases of a test process, and not again for each test's engine.

As in a service that has run for a while, whose engine finds what it executes in its cache.
"""

import functools
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.engine import Dialect
from sqlalchemy.util import LRUCache

#: statements that are kept
_MOST = 4000


class _OfAllEngines(LRUCache[Any, Any]):
    """A cache of compiled statements whose keys name the kind of a database where SQLAlchemy's name the engine's."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(_of_kind(key), default)

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(_of_kind(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_of_kind(key), value)


def _of_kind(key: Any) -> Any:
    if not (isinstance(key, tuple) and key and isinstance(key[0], Dialect)):
        return key
    dialect, *statement = key
    serializers = getattr(dialect, "_json_serializer", None), getattr(dialect, "_json_deserializer", None)
    version = getattr(dialect, "server_version_info", None)
    return (type(dialect), version, dialect.paramstyle, serializers, *statement)


def share_statements() -> None:
    """From now on engines that are made share what they compile."""
    made = Engine.__init__
    shared: _OfAllEngines = _OfAllEngines(_MOST)

    @functools.wraps(made)
    def init(self: Engine, *given: Any, **options: Any) -> None:
        made(self, *given, **options)
        if getattr(self, "_compiled_cache", None) is not None:
            self._compiled_cache = shared

    Engine.__init__ = init  # type: ignore[method-assign]
