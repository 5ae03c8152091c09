"""Langfuse: the scores of a project, by its public API v3 (`GET /api/public/v3/scores`, read with langfuse 5.0.4)."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ragbandit.router.config.importers import LangfuseSettings
from ragbandit.router.importers.source import (
    DECISION,
    MAX_PAGES,
    FeedbackSystem,
    Fields,
    Links,
    SourcePage,
    Walk,
    secret,
    text_of,
)
from ragbandit.router.storage.imported_feedback import Imported
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.formats import iso_time

_SCORES: Final = "/api/public/v3/scores"
#: where a reply has the cursor of the next page
_CURSOR: Final = "meta.cursor"
#: the most that the server gives at once
_LIMIT: Final = 100


def _links(entry: Mapping[str, Any]) -> Links:
    """What a score is about: an observation (a span), or a trace. Sessions and experiments are of many decisions."""
    subject = entry.get("subject")
    key = text_of(entry, "subject.id")
    kind = subject.get("kind") if isinstance(subject, dict) else None
    if key is None or kind not in ("trace", "observation"):
        return ()
    if kind == "trace":
        return ((DECISION, key), ("trace", key))
    trace = text_of(entry, "subject.traceId")
    whole = () if trace is None else ((DECISION, trace), ("trace", trace))
    return (("span", key), (DECISION, key), *whole)


class Langfuse(FeedbackSystem):
    """A project of Langfuse. What EVAL made is a model's; what came by the API does not say who judged."""

    name = "langfuse"
    fields = Fields(
        edited=("updatedAt", "timestamp"),
        made_by={"ANNOTATION": "human", "EVAL": "judge"},
        maker="source",
        author="authorUserId",
        links=_links,
    )

    def __init__(self, settings: LangfuseSettings, *, ending: threading.Event) -> None:
        keys = secret(settings.public_key_env, self.name), secret(settings.secret_key_env, self.name)
        super().__init__(settings, ending=ending, also=keys[0], auth=keys)  # a project has keys of its own

    def pages(self, walk: Walk) -> Iterator[SourcePage]:
        """All scores whose timestamp lies in the walk, however the server sorts them."""
        mark = walk.mark if isinstance(walk.mark, str) else None
        query = {"limit": _LIMIT, "fields": "subject,annotation", "fromTimestamp": iso_time(max(0.0, walk.since))}
        query["toTimestamp"] = iso_time(max(0.0, walk.until))
        for start in dict.fromkeys((mark, None)):
            try:
                for entries, following in self.listed(_SCORES, query, cursor_at=_CURSOR, cursor=start, most=MAX_PAGES):
                    yield self.page(entries, mark=following)
            except ConfigError:  # a cursor of an earlier import that is not valid any more: again from the beginning
                if start is None:
                    raise
            else:
                return

    def gone(self, known: Sequence[Imported]) -> set[str]:
        """Scores that were deleted."""
        ids = list(dict.fromkeys(one.facts["id"] for one in known))
        there = set()
        for start in range(0, len(ids), _LIMIT):
            query = {"id": ",".join(ids[start : start + _LIMIT]), "limit": _LIMIT}
            for entries, _ in self.listed(_SCORES, query, cursor_at=_CURSOR):
                there |= {entry.get("id") for entry in entries if isinstance(entry, dict)}
        return set(ids) - there
