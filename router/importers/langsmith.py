"""LangSmith: feedback on runs, by `GET /feedback` (as langsmith 0.14.17 calls it)."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from ragbandit.router.config.importers import LangSmithSettings
from ragbandit.router.errors import NotReady
from ragbandit.router.formats import iso_time
from ragbandit.router.importers.http_pages import HttpPages
from ragbandit.router.importers.judgements import DECISION, Judgement, Page, Walk, text_of, time_of
from ragbandit.router.importers.keys import place_of, secret
from ragbandit.router.storage.import_cursors import Imported

__all__ = ["LangSmith"]

#: the most that the server gives at once, and how far the next page begins behind: what is deleted meanwhile moves
#: later entries forward, and up to ten of them are still seen
_LIMIT: Final = 100
_STEP: Final = 90
#: feedback of which one import asks whether it is still there, the newest
_MOST_ASKED: Final = 50
_MADE_BY: Final[Mapping[str, Literal["human", "judge"]]] = {"app": "human", "model": "judge", "auto_eval": "judge"}


class LangSmith:
    """A workspace of LangSmith. What a model or an automatic evaluator gave is a model's; "api" does not say who."""

    name = "langsmith"

    def __init__(self, settings: LangSmithSettings, *, ending: threading.Event) -> None:
        assert settings.url is not None
        self._project = settings.project
        key = secret(settings.key_env, self.name)
        self.place = place_of(settings.url, also=settings.project or "")
        self._http = HttpPages(
            settings.url, setting=self.name, headers={"x-api-key": key}, timeout_s=settings.timeout_s, ending=ending
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def pages(self, walk: Walk) -> Iterator[Page]:
        """All feedback that was made in the walk; an edit of an earlier one is not told by the server."""
        offset = walk.mark if isinstance(walk.mark, int) else 0
        asked = {
            "limit": _LIMIT,
            "min_created_at": iso_time(max(0.0, walk.since)),
            "max_created_at": iso_time(max(0.0, walk.until)),
        }
        before: set[str] = set()
        while True:
            entries = self._http.get("/feedback", params={**asked, "session": self._project, "offset": offset})
            if not isinstance(entries, list):
                raise NotReady("langsmith: a page is no list of feedback", field="importers.langsmith.url")
            judgements = [one for one in map(_judgement, entries) if one is not None]
            ids = {one.id for one in judgements}
            # A server that does not count from the offset would tell the same for ever.
            following = offset + _STEP if len(entries) >= _LIMIT and ids != before else None
            before = ids
            yield Page(judgements=judgements, mark=following, unreadable=len(entries) - len(judgements))
            if following is None:
                return
            offset = following

    def gone(self, known: Sequence[Imported]) -> set[str]:
        """Feedback that was deleted."""
        ids = list(dict.fromkeys(one.facts["id"] for one in known))[-_MOST_ASKED:]
        return {key for key in ids if self._http.get(f"/feedback/{key}", missing_ok=True) is None}


def _judgement(entry: Any) -> Judgement | None:
    if not isinstance(entry, dict):
        return None
    key, name = text_of(entry, "id"), text_of(entry, "key")
    edited = time_of(entry.get("modified_at") or entry.get("created_at"))
    value = entry.get("score") if entry.get("score") is not None else entry.get("value")
    if key is None or name is None or edited is None or not isinstance(value, bool | int | float | str):
        return None
    source = entry.get("feedback_source")
    source = source if isinstance(source, dict) else {}
    made_by = _MADE_BY.get(str(source.get("type")))
    run, trace = text_of(entry, "run_id"), text_of(entry, "trace_id")
    links = [(kind, run) for kind in (DECISION, "run") if run is not None]
    links += [(kind, trace) for kind in (DECISION, "trace") if trace is not None and trace != run]
    return Judgement(
        id=key,
        version=str(entry.get("modified_at") or entry.get("created_at"))[:64],
        name=name,
        value=value,
        made_by=made_by,
        # By the API it is whoever owns the key, not who judged.
        author=text_of(source, "user_id") if made_by == "human" else None,
        links=tuple(links),
        at=edited,
    )
