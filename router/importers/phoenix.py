"""Phoenix: annotations of spans, by `GET /v1/projects/{project}/span_annotations`.

Written by arize-phoenix-client 3.5.0. The server tells annotations of the spans that it is asked for, so an import asks
for the spans of our own decisions.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal
from urllib.parse import quote

from ragbandit.router.config.importers import PhoenixSettings
from ragbandit.router.errors import NotReady
from ragbandit.router.importers.http_pages import HttpPages
from ragbandit.router.importers.judgements import Judgement, Page, Walk, text_of, time_of
from ragbandit.router.importers.keys import place_of, secret
from ragbandit.router.storage.import_cursors import Imported

__all__ = ["Phoenix", "SpansBetween"]

#: spans in one call, as the server's own client asks, and annotations in one reply
_SPANS: Final = 100
_LIMIT: Final = 1000
#: replies to one call for spans
_MAX_REPLIES: Final = 100
_MADE_BY: Final[dict[str, Literal["human", "judge", "code"]]] = {"HUMAN": "human", "LLM": "judge", "CODE": "code"}

#: (since, until, after, limit) -> (span id, time, decision id) of decisions; see decision_links.links_between
SpansBetween = Callable[[float, float, tuple[float, str] | None, int], list[tuple[str, float, str]]]


class Phoenix:
    """A project of Phoenix."""

    name = "phoenix"

    def __init__(self, settings: PhoenixSettings, *, spans: SpansBetween, ending: threading.Event) -> None:
        """spans: those of our decisions."""
        assert settings.url is not None
        self._spans = spans
        headers = {}
        if settings.key_env is not None:
            headers["authorization"] = f"Bearer {secret(settings.key_env, self.name)}"
        self.place = place_of(settings.url, also=settings.project)
        self._path = f"/v1/projects/{quote(settings.project, safe='')}/span_annotations"
        self._http = HttpPages(
            settings.url, setting=self.name, headers=headers, timeout_s=settings.timeout_s, ending=ending
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def pages(self, walk: Walk) -> Iterator[Page]:
        """All annotations of the spans of decisions that were made in the walk."""
        mark = walk.mark
        after = (float(mark[0]), str(mark[1])) if isinstance(mark, list | tuple) and len(mark) == 2 else None
        while True:
            some = self._spans(walk.since, walk.until, after, _SPANS)
            made = {(at, decision) for _, at, decision in some}
            last = len(made) < _SPANS
            after = None if last else max(made)
            entries = list(self._annotations([span for span, _, _ in some]))
            judgements = [one for one in map(_judgement, entries) if one is not None]
            yield Page(
                judgements=judgements,
                mark=None if after is None else list(after),
                unreadable=len(entries) - len(judgements),
            )
            if last:
                return

    def gone(self, known: Sequence[Imported]) -> set[str]:
        """Annotations that were deleted."""
        ids = {one.facts["id"] for one in known}
        spans = list(dict.fromkeys(one.facts.get("of", "") for one in known))
        there = {entry.get("id") for entry in self._annotations([span for span in spans if span])}
        return ids - there

    def _annotations(self, spans: Sequence[str]) -> Iterator[dict[str, Any]]:
        for start in range(0, len(spans), _SPANS):
            asked = {"span_ids": list(spans[start : start + _SPANS]), "limit": _LIMIT}
            cursor: str | None = None
            for _ in range(_MAX_REPLIES):
                # Notes of the user interface are texts, and no judgements.
                more = {"cursor": cursor, "exclude_annotation_names": ["note"]}
                reply = self._http.get(self._path, params={**asked, **more})
                data = reply.get("data") if isinstance(reply, dict) else None
                if not isinstance(data, list):
                    raise NotReady("phoenix: a page has no list of annotations", field="importers.phoenix.url")
                yield from (entry if isinstance(entry, dict) else {} for entry in data)
                cursor = reply.get("next_cursor")
                if not isinstance(cursor, str) or not cursor:
                    break
            else:  # what is not told must not be taken for deleted
                raise NotReady("phoenix: a list of annotations has no end", field="importers.phoenix")


def _judgement(entry: dict[str, Any]) -> Judgement | None:
    key, name, span = text_of(entry, "id"), text_of(entry, "name"), text_of(entry, "span_id")
    edited = time_of(entry.get("updated_at") or entry.get("created_at"))
    result = entry.get("result")
    result = result if isinstance(result, dict) else {}
    value = result.get("score") if result.get("score") is not None else result.get("label")
    if key is None or name is None or span is None or edited is None or not isinstance(value, bool | int | float | str):
        return None
    return Judgement(
        id=key,
        version=str(entry.get("updated_at") or entry.get("created_at"))[:64],
        name=name,
        value=value,
        made_by=_MADE_BY.get(str(entry.get("annotator_kind")).upper()),
        author=text_of(entry, "user_id"),
        links=(("span", span),),
        at=edited,
    )
