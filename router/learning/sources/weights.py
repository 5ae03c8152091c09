"""Weights of sources: the factor on `learning.weights` that the setting `learning.sources` gives a feedback."""

from collections.abc import Mapping

from ragbandit.router.learning.sources.origin import IMPORTED_RATER, KINDS, Origin, matches
from ragbandit.shared.types import Feedback

__all__ = ["factor"]


def factor(item: Feedback, *, origin: Origin, configured: Mapping[str, float]) -> float:
    """What a feedback's weight is multiplied by, >= 0; with 0 it is stored and not learned from.

    Of several names that match, the closest to the person counts: rater, then key, role, tenant; of one kind the
    longest. Where none matches it is 1, but 0 for scores of a model that come from another system: nobody here has
    looked at that model yet.
    """
    found = [name for name in configured if matches(name, origin)]
    if found:
        best = min(found, key=lambda name: (KINDS.index(name.partition(":")[0]), name.endswith("*"), -len(name), name))
        return configured[best]
    foreign = item.source == "judge" and (item.rater or "").startswith(IMPORTED_RATER)
    return 0.0 if foreign else 1.0
