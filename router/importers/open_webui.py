"""Open WebUI: its users' ratings, by the administrator's API (read in open-webui 0.12.4).

`GET /api/v1/evaluations/feedbacks/list` has no snapshots of chats; the export has them, and is not used.
"""

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from ragbandit.router.config.importers import OpenWebUiSettings
from ragbandit.router.errors import NotReady
from ragbandit.router.importers.http_pages import HttpPages
from ragbandit.router.importers.judgements import DECISION, Judgement, Page, Walk, text_of, time_of
from ragbandit.router.importers.keys import place_of, secret
from ragbandit.router.storage.import_cursors import Imported

__all__ = ["OpenWebUi"]

_LIST: Final = "/api/v1/evaluations/feedbacks/list"
_IDS: Final = "/api/v1/evaluations/feedbacks/all/ids"
#: times that the list is read again because ratings were deleted while it was read
_AGAIN: Final = 3


class OpenWebUi:
    """An Open WebUI."""

    name = "openwebui"

    def __init__(self, settings: OpenWebUiSettings, *, ending: threading.Event) -> None:
        assert settings.url is not None
        self.place = place_of(settings.url)
        key = f"Bearer {secret(settings.key_env, self.name)}"
        self._http = HttpPages(
            settings.url,
            setting=self.name,
            headers={"authorization": key},
            timeout_s=settings.timeout_s,
            ending=ending,
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def pages(self, walk: Walk) -> Iterator[Page]:
        """All ratings that were given or edited since the walk's begin, the newest first.

        Pages are numbered, so what is rated meanwhile moves the others to later pages, where they are seen again; a
        deletion moves them to earlier ones, unseen: then the list is read again. A walk that was cut off begins anew.
        """
        for _ in range(_AGAIN):
            totals: list[int] = []
            number, seen = 1, 0
            while True:
                asked = {"order_by": "updated_at", "direction": "desc", "page": number}
                entries, total = _parts(self._http.get(_LIST, params=asked))
                totals.append(total)
                seen += len(entries)
                judgements = [one for one in map(_judgement, entries) if one is not None]
                new = [one for one in judgements if one.at >= walk.since]
                last = not entries or len(new) < len(judgements) or seen >= total
                shrunk = last and any(later < earlier for earlier, later in pairwise(totals))
                following = None if last and not shrunk else number + 1
                yield Page(judgements=new, mark=following, unreadable=len(entries) - len(judgements))
                if last:
                    break
                number += 1
            if not shrunk:
                return
        yield Page(judgements=(), mark=None)

    def gone(self, known: Sequence[Imported]) -> set[str]:
        """Ratings that were deleted."""
        entries = self._http.get(_IDS)
        if not isinstance(entries, list):
            raise NotReady("openwebui: the ids of ratings are no list", field="importers.openwebui.url")
        there = {entry.get("id") for entry in entries if isinstance(entry, dict)}
        return {one.facts["id"] for one in known} - there


def _parts(reply: Any) -> tuple[list[Any], int]:
    entries = reply.get("items") if isinstance(reply, dict) else None
    total = reply.get("total") if isinstance(reply, dict) else None
    if not isinstance(entries, list) or not isinstance(total, int):
        raise NotReady("openwebui: a page has no list of ratings", field="importers.openwebui.url")
    return entries, total


def _judgement(entry: Any) -> Judgement | None:
    """A rating: 1 or -1. The same entry may hold a rating of 1 to 10 in its details, which is another name."""
    if not isinstance(entry, dict):
        return None
    key, edited = text_of(entry, "id"), time_of(entry.get("updated_at"))
    data, meta = entry.get("data"), entry.get("meta")
    if key is None or edited is None or not isinstance(data, dict) or not isinstance(meta, dict):
        return None
    value, message = data.get("rating"), text_of(meta, "message_id")
    if not isinstance(value, bool | int | float | str):
        return None
    return Judgement(
        id=key,
        version=str(entry.get("updated_at"))[:64],
        name=str(entry.get("type") or "rating")[:64],
        value=value,
        made_by="human",
        author=text_of(entry, "user_id"),
        links=() if message is None else (("openwebui_message", message), (DECISION, message)),
        at=edited,
    )
