"""Judgements: what another system says of an answer, before it is feedback of ours."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ragbandit.router.formats import seconds_of
from ragbandit.router.storage.import_cursors import Imported
from ragbandit.router.types import Json

__all__ = ["DECISION", "Judgement", "Page", "Source", "Walk", "text_of", "time_of"]

#: kind of link: the value is a decision's id itself
DECISION = "decision"

#: longest text of another system that is looked at: ids, names, categories
MAX_NAME = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """One score, annotation or rating. Comments and what was asked or answered are not read."""

    #: the id there
    id: str
    #: another one after each edit
    version: str
    name: str
    value: float | bool | str | None
    #: who made it; None: the other system does not say
    made_by: Literal["human", "judge", "code"] | None
    #: the person's id there; None: not told
    author: str | None
    #: what it is about: kinds of link and values, the closest first
    links: tuple[tuple[str, str], ...]
    #: when it was made or edited, seconds since 1970
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """One walk through what another system has to tell."""

    #: what was made or edited from then on is wanted, seconds since 1970
    since: float
    #: when the walk began
    until: float
    #: the source's own mark of where the walk goes on; None: at the beginning
    mark: Json = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """Some of a walk."""

    judgements: Sequence[Judgement]
    #: where the walk goes on after it; None: it is the last
    mark: Json
    #: entries that have not the shape of a judgement
    unreadable: int = 0


class Source(Protocol):
    """Another system."""

    #: as the settings name it
    name: str
    #: its host, and what else tells one of its cursors from another
    place: str

    def pages(self, walk: Walk) -> Iterator[Page]:
        """The pages of a walk. Raises NotReady, ConfigError."""
        ...

    def gone(self, known: Sequence[Imported]) -> set[str]:
        """The ids among these that the other system has no more. Raises NotReady, ConfigError."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def text_of(entry: Mapping[str, Any], name: str) -> str | None:
    """A short text of an entry; None where it is none."""
    found = entry.get(name)
    return found if isinstance(found, str) and 0 < len(found) <= MAX_NAME and found.isprintable() else None


def time_of(value: object) -> float | None:
    """A time, told in seconds since 1970 or in ISO 8601 (UTC if it says nothing), as seconds; None: it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if not isinstance(value, str):
        return float(value) if 0 <= value < 1e11 else None
    try:
        return seconds_of(value)
    except ValueError:
        return None
