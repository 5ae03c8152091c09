"""LangSmith: feedback on runs, by `GET /feedback` (as langsmith 0.14.17 calls it)."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ragbandit.router.config.importers import LangSmithSettings
from ragbandit.router.importers.source import DECISION, FeedbackSystem, Fields, Links, SourcePage, Walk, secret, text_of
from ragbandit.router.storage.imported_feedback import Imported
from ragbandit.shared.formats import iso_time
from ragbandit.shared.types import Json

#: the most that the server gives at once, and how far the next page begins behind: what is deleted meanwhile moves
#: later entries forward, and up to ten of them are still seen
_LIMIT: Final = 100
_STEP: Final = 90
#: feedback of which one import asks whether it is still there, the newest
_MOST_ASKED: Final = 50


def _links(entry: Mapping[str, Any]) -> Links:
    run, trace = text_of(entry, "run_id"), text_of(entry, "trace_id")
    links = [(kind, run) for kind in (DECISION, "run") if run is not None]
    links += [(kind, trace) for kind in (DECISION, "trace") if trace is not None and trace != run]
    return tuple(links)


class LangSmith(FeedbackSystem):
    """A workspace of LangSmith. What a model or an automatic evaluator gave is a model's; "api" does not say who."""

    name = "langsmith"
    fields = Fields(
        name="key",
        value=("score", "value"),
        edited=("modified_at", "created_at"),
        made_by={"APP": "human", "MODEL": "judge", "AUTO_EVAL": "judge"},
        maker="feedback_source.type",
        author="feedback_source.user_id",
        links=_links,
    )

    def __init__(self, settings: LangSmithSettings, *, ending: threading.Event) -> None:
        self._project = settings.project
        key = {"x-api-key": secret(settings.key_env, self.name)}
        super().__init__(settings, ending=ending, also=settings.project or "", headers=key)

    def pages(self, walk: Walk) -> Iterator[SourcePage]:
        """All feedback that was made in the walk; an edit of an earlier one is not told by the server."""
        offset = walk.mark if isinstance(walk.mark, int) else 0
        times = {"min_created_at": iso_time(max(0.0, walk.since)), "max_created_at": iso_time(max(0.0, walk.until))}
        query = {"limit": _LIMIT, "session": self._project, **times}
        before: set[str] = set()
        while True:
            entries = self.entries(self._http.get("/feedback", params={**query, "offset": offset}))
            page = self.page(entries, mark=None)
            ids = {one.id for one in page.judgements}
            # A server that does not count from the offset would tell the same for ever.
            following = offset + _STEP if len(entries) >= _LIMIT and ids != before else None
            before = ids
            yield replace(page, mark=following)
            if following is None:
                return
            offset = following

    def page(self, entries: Sequence[Any], *, mark: Json) -> SourcePage:
        """As of any source; by the API the user is whoever owns the key, not who judged."""
        page = super().page(entries, mark=mark)
        judgements = [one if one.made_by == "human" else replace(one, author=None) for one in page.judgements]
        return replace(page, judgements=judgements)

    def gone(self, known: Sequence[Imported]) -> set[str]:
        """Feedback that was deleted."""
        ids = list(dict.fromkeys(one.facts["id"] for one in known))[-_MOST_ASKED:]
        return {key for key in ids if self._http.get(f"/feedback/{key}", missing_ok=True) is None}
