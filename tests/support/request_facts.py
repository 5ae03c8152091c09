"""What a request says, as the fields of its query."""

from typing import Any

from ragbandit.shared.types import continues_of, sent_of, terms_of


def records(**entries: Any) -> dict[str, Any]:
    """Fields of a Query from entries of the object that the store and replies have."""
    return {"sent": sent_of(entries), "continues": continues_of(entries), "terms": terms_of(entries)}
