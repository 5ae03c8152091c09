"""Open WebUI: its users' ratings, by the administrator's API (read in open-webui 0.12.4).

`GET /api/v1/evaluations/feedbacks/list` has no snapshots of chats; the export has them, and is not used.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from ragbandit.router.config.importers import OpenWebUiSettings
from ragbandit.router.importers.source import DECISION, FeedbackSystem, Fields, Links, SourcePage, Walk, secret, text_of
from ragbandit.router.storage.imported_feedback import Imported
from ragbandit.shared.errors import NotReady

_LIST: Final = "/api/v1/evaluations/feedbacks/list"
_IDS: Final = "/api/v1/evaluations/feedbacks/all/ids"
#: times that the list is read again because ratings were deleted while it was read
_AGAIN: Final = 3


def _links(entry: Mapping[str, Any]) -> Links:
    message = text_of(entry, "meta.message_id")
    return () if message is None else (("openwebui_message", message), (DECISION, message))


class OpenWebUi(FeedbackSystem):
    """An Open WebUI. A rating is 1 or -1; the rating of 1 to 10 in its details is not read."""

    name = "openwebui"
    fields = Fields(
        name="type",
        default_name="rating",
        value=("data.rating",),
        edited=("updated_at",),
        made_by="human",
        author="user_id",
        links=_links,
    )

    def __init__(self, settings: OpenWebUiSettings, *, ending: threading.Event) -> None:
        key = {"authorization": f"Bearer {secret(settings.key_env, self.name)}"}
        super().__init__(settings, ending=ending, headers=key)

    def pages(self, walk: Walk) -> Iterator[SourcePage]:
        """All ratings that were given or edited since the walk's begin, the newest first.

        Pages are numbered, so what is rated meanwhile moves the others to later pages, where they are seen again; a
        deletion moves them to earlier ones, unseen: then the list is read again. A walk that was cut off begins anew.
        """
        for _ in range(_AGAIN):
            totals: list[int] = []
            number, seen = 1, 0
            while True:
                query = {"order_by": "updated_at", "direction": "desc", "page": number}
                reply = self._http.get(_LIST, params=query)
                entries, total = self.entries(reply, "items"), reply.get("total")
                if not isinstance(total, int):
                    raise NotReady("openwebui: a page has no total", field="importers.openwebui.url")
                totals.append(total)
                seen += len(entries)
                page = self.page(entries, mark=None)
                new = [one for one in page.judgements if one.at >= walk.since]
                last = not entries or len(new) < len(page.judgements) or seen >= total
                shrunk = last and any(later < earlier for earlier, later in pairwise(totals))
                following = None if last and not shrunk else number + 1
                yield replace(page, judgements=new, mark=following)
                if last:
                    break
                number += 1
            if not shrunk:
                return
        yield SourcePage(judgements=(), mark=None)

    def gone(self, known: Sequence[Imported]) -> set[str]:
        """Ratings that were deleted."""
        entries = self.entries(self._http.get(_IDS))
        there = {entry.get("id") for entry in entries if isinstance(entry, dict)}
        return {one.facts["id"] for one in known} - there
