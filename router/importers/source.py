"""Source: another system, and what it says of an answer, before it is feedback of ours."""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

from ragbandit.router.config.importers import ImporterSettings
from ragbandit.router.importers.http_pages import HttpPages
from ragbandit.router.storage.imported_feedback import Imported
from ragbandit.shared.errors import ConfigError, NotReady
from ragbandit.shared.formats import seconds_of
from ragbandit.shared.types import Json

#: kind of link: the value is a decision's id itself
DECISION: Final = "decision"
#: pages of one walk; what is beyond them comes with the next walk
MAX_PAGES: Final = 20_000
#: longest text of another system that is looked at: ids, names, categories
MAX_NAME: Final = 200

MadeBy = Literal["human", "judge", "code"]
#: what a judgement is about: kinds of link and values, the closest first
Links = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """One score, annotation or rating. Comments and what was asked or answered are not read."""

    #: the id there
    id: str
    #: another one after each edit
    version: str
    name: str
    value: float | bool | str
    #: who made it; None: the other system does not say
    made_by: MadeBy | None
    #: the person's id there; None: not told
    author: str | None
    links: Links
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
class SourcePage:
    """Some of a walk."""

    judgements: Sequence[Judgement]
    #: where the walk goes on after it; None: it is the last
    mark: Json
    #: entries that have not the shape of a judgement
    unreadable: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Fields:
    """Where an entry of another system says what; dots lead into objects, of several places the first that is there."""

    links: Callable[[Mapping[str, Any]], Links]
    name: str = "name"
    value: Sequence[str] = ("value",)
    edited: Sequence[str]
    #: words there, in capitals -> who made it; or the same for all
    made_by: Mapping[str, MadeBy] | MadeBy
    #: where that word stands
    maker: str = ""
    author: str
    #: name of an entry that has none; None: it is no judgement
    default_name: str | None = None

    def judgement(self, entry: Any) -> Judgement | None:
        """The judgement of an entry; None where it has not the shape of one."""
        if not isinstance(entry, dict):
            return None
        key, name = text_of(entry, "id"), text_of(entry, self.name) or self.default_name
        edited, value = _first(entry, self.edited), _first(entry, self.value)
        at = _time_of(edited)
        if key is None or name is None or at is None or not isinstance(value, bool | int | float | str):
            return None
        return Judgement(
            id=key,
            version=str(edited)[:64],
            name=name,
            value=value,
            made_by=self._made_by(entry),
            author=text_of(entry, self.author),
            links=self.links(entry),
            at=at,
        )

    def _made_by(self, entry: Mapping[str, Any]) -> MadeBy | None:
        if isinstance(self.made_by, str):
            return self.made_by
        return self.made_by.get(str(_at(entry, self.maker)).upper())


class FeedbackSystem(ABC):
    """Another system, read by HTTP."""

    #: as the settings name it
    name: ClassVar[str]
    fields: ClassVar[Fields]

    def __init__(
        self,
        settings: ImporterSettings,
        *,
        ending: threading.Event,
        also: str = "",
        headers: Mapping[str, str] | None = None,
        auth: tuple[str, str] | None = None,
    ) -> None:
        """ending: once it is set, waits end. also: tells one of its cursors from others of the same address."""
        assert settings.url is not None, "make_source has looked"
        parts = urlsplit(settings.url)
        digits = f"#{sha256(also.encode()).hexdigest()[:8]}" if also else ""
        #: its host, port and path, and a few digits of `also`
        self.place = f"{parts.netloc}{parts.path}"[:90] + digits
        self._http = HttpPages(
            settings.url, setting=self.name, headers=headers, auth=auth, timeout_s=settings.timeout_s, ending=ending
        )

    @abstractmethod
    def pages(self, walk: Walk) -> Iterator[SourcePage]:
        """The pages of a walk. Raises NotReady, ConfigError."""

    @abstractmethod
    def gone(self, known: Sequence[Imported]) -> set[str]:
        """The ids among these that the other system has no more. Raises NotReady, ConfigError."""

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def page(self, entries: Sequence[Any], *, mark: Json) -> SourcePage:
        """A page of these entries."""
        judgements = [one for one in map(self.fields.judgement, entries) if one is not None]
        return SourcePage(judgements=judgements, mark=mark, unreadable=len(entries) - len(judgements))

    def entries(self, reply: Any, key: str | None = None) -> list[Any]:
        """The list of a reply, under its key. Raises NotReady where it has none."""
        listed = reply if key is None else reply.get(key) if isinstance(reply, dict) else None
        if not isinstance(listed, list):
            raise NotReady(f"{self.name}: a page has no list of judgements", field=f"importers.{self.name}.url")
        return listed

    def listed(
        self, path: str, query: Mapping[str, Any], *, cursor_at: str, cursor: str | None = None, most: int = 100
    ) -> Iterator[tuple[list[Any], str | None]]:
        """The entries of each page of a list, from this cursor on, and the cursor of the next page.

        cursor_at: where a reply has it. most: pages. Raises NotReady for a list that does not end: what is not told
        must not be taken for deleted.
        """
        for _ in range(most):
            reply = self._http.get(path, params={**query, "cursor": cursor})
            entries, following = self.entries(reply, "data"), _at(reply, cursor_at)
            if not isinstance(following, str) or not following:
                yield entries, None
                return
            if following == cursor:
                break
            yield entries, following
            cursor = following
        raise NotReady(f"{self.name}: a list of judgements has no end", field=f"importers.{self.name}")


def secret(variable: str, importer: str) -> str:
    """The value of an environment variable, fit for a header. Raises ConfigError, which does not show it."""
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ConfigError(
            f"the environment variable {variable} is not set",
            field=f"importers.{importer}",
            remedy=f"put the key of {importer} there, or name another variable",
        )
    if not (value.isascii() and value.isprintable()) or len(value) > 4096:
        raise ConfigError(
            f"the environment variable {variable} holds what no header can carry",
            field=f"importers.{importer}",
            remedy="set it again without line breaks",
        )
    return value


def text_of(entry: Mapping[str, Any], path: str) -> str | None:
    """A short text of an entry; None where it is none."""
    value = _at(entry, path)
    return value if isinstance(value, str) and 0 < len(value) <= MAX_NAME and value.isprintable() else None


def _at(entry: Any, path: str) -> Any:
    for key in path.split("."):
        entry = entry.get(key) if isinstance(entry, dict) else None
    return entry


def _first(entry: Mapping[str, Any], paths: Sequence[str]) -> Any:
    return next((value for path in paths if (value := _at(entry, path)) is not None), None)


def _time_of(value: object) -> float | None:
    """A time, told in seconds since 1970 or in ISO 8601 (UTC if it says nothing), as seconds; None: it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if not isinstance(value, str):
        return float(value) if 0 <= value < 1e11 else None
    try:
        return seconds_of(value)
    except ValueError:
        return None
