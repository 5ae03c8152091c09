"""Phoenix: annotations of spans, by `GET /v1/projects/{project}/span_annotations`.

Written by arize-phoenix-client 3.5.0. The server tells annotations of the spans that it is asked for, so an import asks
for the spans of our own decisions.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from ragbandit.router.config.importers import PhoenixSettings
from ragbandit.router.importers.source import FeedbackSystem, Fields, Links, SourcePage, Walk, secret, text_of
from ragbandit.router.storage.imported_feedback import Imported

#: spans in one call, as the server's own client asks, and annotations in one reply
_SPANS: Final = 100
_LIMIT: Final = 1000

#: (since, until, after, limit) -> (span id, time, decision id) of decisions; see decision_links.links_between
SpansBetween = Callable[[float, float, tuple[float, str] | None, int], list[tuple[str, float, str]]]


def _links(entry: Mapping[str, Any]) -> Links:
    span = text_of(entry, "span_id")
    return () if span is None else (("span", span),)


class Phoenix(FeedbackSystem):
    """A project of Phoenix."""

    name = "phoenix"
    fields = Fields(
        value=("result.score", "result.label"),
        edited=("updated_at", "created_at"),
        made_by={"HUMAN": "human", "LLM": "judge", "CODE": "code"},
        maker="annotator_kind",
        author="user_id",
        links=_links,
    )

    def __init__(self, settings: PhoenixSettings, *, spans: SpansBetween, ending: threading.Event) -> None:
        """spans: those of our decisions."""
        self._spans = spans
        self._path = f"/v1/projects/{quote(settings.project, safe='')}/span_annotations"
        key = settings.key_env and {"authorization": f"Bearer {secret(settings.key_env, self.name)}"}
        super().__init__(settings, ending=ending, also=settings.project, headers=key or {})

    def pages(self, walk: Walk) -> Iterator[SourcePage]:
        """All annotations of the spans of decisions that were made in the walk."""
        mark = walk.mark
        after = (float(mark[0]), str(mark[1])) if isinstance(mark, list | tuple) and len(mark) == 2 else None
        while True:
            some = self._spans(walk.since, walk.until, after, _SPANS)
            decisions = {(at, decision) for _, at, decision in some}
            last = len(decisions) < _SPANS
            after = None if last else max(decisions)
            entries = list(self._annotations([span for span, _, _ in some]))
            yield self.page(entries, mark=None if after is None else list(after))
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
            # Notes of the user interface are texts, and no judgements.
            query = {
                "span_ids": list(spans[start : start + _SPANS]),
                "limit": _LIMIT,
                "exclude_annotation_names": ["note"],
            }
            for entries, _ in self.listed(self._path, query, cursor_at="next_cursor"):
                yield from (entry if isinstance(entry, dict) else {} for entry in entries)
