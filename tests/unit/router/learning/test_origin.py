"""Origins: names of sources, and what a source counts."""

import pytest

from ragbandit.router.learning.sources import matches_source, sources_of, weight_factor
from ragbandit.shared.types import Feedback


def said(*, api_key=None, rater=None, source="human"):
    return Feedback(
        id="f", decision_id="d", kind="rating", value=1.0, source=source, received_at=0.0, rater=rater, api_key=api_key
    )


KEYS = {"one": {"key:shop", "role:app"}, "two": {"key:shop", "role:app"}, "other": {"key:x", "role:app"}}


def test_keys_of_one_name_are_one_source():
    """The name of a key stands for every key of that name, as for one that took the place of another."""
    first, second = (sources_of(said(api_key=each), tenant="t", keys=KEYS) for each in ("one", "two"))
    assert first ^ second == {"key:one", "key:two"}
    for name in ("key:one", "key:shop", "role:app", "tenant:t", "key:*"):
        assert matches_source(name, first), name
    for name in ("key:other", "role:operator", "tenant:", "rater:*", "what:ever"):
        assert not matches_source(name, first), name


@pytest.mark.parametrize(
    ("item", "configured", "wanted"),
    [
        (said(), {}, 1.0),
        (said(rater="import:langfuse:eval", source="judge"), {}, 0.0),
        (said(rater="import:langfuse:eval", source="judge"), {"import:langfuse:eval": 0.3}, 0.3),
        (said(rater="import:langfuse:eval", source="judge"), {"import:*": 0.2, "import:langfuse:*": 0.4}, 0.4),
        (said(rater="import:langfuse:ann"), {}, 1.0),
        (said(api_key="one", rater="ann"), {"rater:ann": 2.0, "key:shop": 0.5, "tenant:t": 0.0}, 0.5),
        (said(api_key="one", rater="bob"), {"rater:ann": 2.0, "key:shop": 0.5, "tenant:t": 0.0}, 0.5),
        (said(rater="bob"), {"rater:ann": 2.0, "key:shop": 0.5, "tenant:t": 0.0}, 0.0),
    ],
)
def test_the_closest_name_counts(item, configured, wanted):
    """A rater cannot raise the weight of its key; a key comes before its tenant; an imported model's score is 0."""
    assert weight_factor(item, sources=sources_of(item, tenant="t", keys=KEYS), configured=configured) == wanted


@pytest.mark.parametrize(
    "name", ["caf\u00e9", "cafe\u0301", " caf\u00e9 ", "caf\u200b\u00e9\ufeff", "cafe\u00ad\u0301"]
)
def test_names_that_look_alike_are_one_source(name):
    """Raters are found by every name that looks like theirs, in the store or in the settings."""
    names = sources_of(said(rater=name), tenant="t", keys={})
    assert "rater:caf\u00e9" in names
    assert matches_source(f"rater:{name}", names)
    assert not matches_source("rater:cafe", names)
