"""Langfuse: the scores of a project, by its public API v3 (`GET /api/public/v3/scores`, read with langfuse 5.0.4)."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from ragbandit.router.config.importers import LangfuseSettings
from ragbandit.router.errors import ConfigError, NotReady
from ragbandit.router.formats import iso_time
from ragbandit.router.importers.http_pages import HttpPages
from ragbandit.router.importers.judgements import DECISION, Judgement, Page, Walk, text_of, time_of
from ragbandit.router.importers.keys import place_of, secret
from ragbandit.router.storage.import_cursors import Imported

__all__ = ["Langfuse"]

_SCORES: Final = "/api/public/v3/scores"
#: the most that the server gives at once
_LIMIT: Final = 100
_MADE_BY: Final[Mapping[str, Literal["human", "judge"]]] = {"ANNOTATION": "human", "EVAL": "judge"}


class Langfuse:
    """A project of Langfuse. What EVAL made is a model's; what came by the API does not say who judged."""

    name = "langfuse"

    def __init__(self, settings: LangfuseSettings, *, ending: threading.Event) -> None:
        assert settings.url is not None
        keys = secret(settings.public_key_env, self.name), secret(settings.secret_key_env, self.name)
        #: a project has keys of its own
        self.place = place_of(settings.url, also=keys[0])
        self._http = HttpPages(settings.url, setting=self.name, auth=keys, timeout_s=settings.timeout_s, ending=ending)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def pages(self, walk: Walk) -> Iterator[Page]:
        """All scores whose timestamp lies in the walk, however the server sorts them."""
        cursor = walk.mark if isinstance(walk.mark, str) else None
        asked = {"limit": _LIMIT, "fields": "subject,annotation", "fromTimestamp": iso_time(max(0.0, walk.since))}
        asked["toTimestamp"] = iso_time(max(0.0, walk.until))
        while True:
            try:
                reply = self._http.get(_SCORES, params={**asked, "cursor": cursor})
            except ConfigError:
                if cursor is None or cursor != walk.mark:
                    raise
                cursor = None  # a cursor of an earlier import that is not valid any more: again from the beginning
                continue
            entries, following = _parts(reply)
            if following is not None and following == cursor:
                raise NotReady("langfuse: a page has itself as the next one", field="importers.langfuse")
            judgements = [one for one in map(_judgement, entries) if one is not None]
            yield Page(judgements=judgements, mark=following, unreadable=len(entries) - len(judgements))
            cursor = following
            if cursor is None:
                return

    def gone(self, known: Sequence[Imported]) -> set[str]:
        """Scores that were deleted."""
        ids = list(dict.fromkeys(one.facts["id"] for one in known))
        there = set()
        for start in range(0, len(ids), _LIMIT):
            some = ids[start : start + _LIMIT]
            cursor: str | None = None
            for _ in some:  # a page has one of them at least
                asked = {"id": ",".join(some), "limit": _LIMIT, "cursor": cursor}
                entries, cursor = _parts(self._http.get(_SCORES, params=asked))
                there |= {entry.get("id") for entry in entries}
                if cursor is None:
                    break
            else:
                raise NotReady("langfuse: a list of scores has no end", field="importers.langfuse")
        return set(ids) - there


def _parts(reply: Any) -> tuple[list[dict[str, Any]], str | None]:
    """The entries of a reply, and the cursor of the next page."""
    data, meta = (reply.get("data"), reply.get("meta")) if isinstance(reply, dict) else (None, None)
    if not isinstance(data, list):
        raise NotReady("langfuse: a page has no list of scores", field="importers.langfuse.url")
    cursor = meta.get("cursor") if isinstance(meta, dict) else None
    entries = [entry if isinstance(entry, dict) else {} for entry in data]
    return entries, cursor if isinstance(cursor, str) and cursor else None


def _judgement(entry: Mapping[str, Any]) -> Judgement | None:
    key, name, value = text_of(entry, "id"), text_of(entry, "name"), entry.get("value")
    edited = time_of(entry.get("updatedAt") or entry.get("timestamp"))
    if key is None or name is None or edited is None or not isinstance(value, bool | int | float | str):
        return None
    return Judgement(
        id=key,
        version=str(entry.get("updatedAt") or entry.get("timestamp"))[:64],
        name=name,
        value=value,
        made_by=_MADE_BY.get(str(entry.get("source")).upper()),
        author=text_of(entry, "authorUserId"),
        links=_links(entry.get("subject")),
        at=edited,
    )


def _links(subject: object) -> tuple[tuple[str, str], ...]:
    """What a score is about: an observation (a span), or a trace. Sessions and experiments are of many decisions."""
    if not isinstance(subject, dict):
        return ()
    key, kind = text_of(subject, "id"), subject.get("kind")
    if key is None or kind not in ("trace", "observation"):
        return ()
    if kind == "trace":
        return ((DECISION, key), ("trace", key))
    trace = text_of(subject, "traceId")
    whole = () if trace is None else ((DECISION, trace), ("trace", trace))
    return (("span", key), (DECISION, key), *whole)
