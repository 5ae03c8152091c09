"""Two retrievers joined by rank."""

import pytest
from hypothesis import given, strategies as st

from ragbandit.additions.hybrid.retriever import HybridRetriever, fuse
from ragbandit.shared.errors import ArmFailed, InvalidInput
from ragbandit.strategies.base import Hit, Passage
from ragbandit.strategies.retrievers.bm25 import Bm25Retriever, build_index
from ragbandit.strategies.retrievers.without_index import MemoryRetriever
from ragbandit.testing.retrievers import PASSAGES, RETRIEVER_CHECKS, passage_ids, search_all


def hits(letters):
    return tuple(Hit(passage=Passage(id=one, title="", text="t"), score=-float(n)) for n, one in enumerate(letters))


@pytest.mark.parametrize("check", RETRIEVER_CHECKS, ids=lambda check: check.__name__)
def test_contract(check, tmp_path_factory):
    """Two indexes joined keep the contract of retrievers."""

    def make(passages):
        folder = tmp_path_factory.mktemp("indexes")
        build_index(passages, folder / "one")
        build_index(passages, folder / "two")
        return HybridRetriever(Bm25Retriever(folder / "one"), second=Bm25Retriever(folder / "two"))

    check(make)


def test_scores_are_sums_of_reciprocal_ranks():
    """A passage first in one list and second in the other scores 1/61 + 1/62, before those in one list."""
    fused = fuse([hits("ab"), hits("cab")], k=10)
    assert passage_ids(fused) == ["a", "b", "c"]
    assert [hit.score for hit in fused] == pytest.approx([1 / 61 + 1 / 62, 1 / 62 + 1 / 63, 1 / 61])


@given(st.lists(st.text("abcdefgh", max_size=8).map(lambda text: "".join(dict.fromkeys(text))), max_size=4))
def test_fusing_is_a_union_in_order(lists):
    """Every passage comes once, scores never rise, and fewer are the first of more."""
    fused = fuse([hits(letters) for letters in lists], k=99)
    assert sorted(passage_ids(fused)) == sorted(set("".join(lists)))
    assert [hit.score for hit in fused] == sorted((hit.score for hit in fused), reverse=True)
    assert fuse([hits(letters) for letters in lists], k=2) == fused[:2]


def test_a_passage_deep_in_both_lists_may_come_first():
    """Both are asked for `depth` hits, not only for k."""
    shared = [Passage(id="shared", title="", text="river sea")]
    first = [Passage(id=f"one{n}", title="", text="river sea lake") for n in range(4)]
    second = [Passage(id=f"two{n}", title="", text="river sea lake") for n in range(4)]

    def best(depth):
        pair = [MemoryRetriever([*rows, *shared]) for rows in (first, second)]
        return passage_ids(search_all(HybridRetriever(pair[0], second=pair[1], depth=depth), "river sea lake", k=1)[0])

    assert best(5) == ["shared"]
    assert best(1) == ["one0"]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_search_fails_if_one_fails(failing):
    """The error of either retriever is raised."""
    pair = [MemoryRetriever(PASSAGES, fail_at=[1] if failing == number else []) for number in range(2)]
    with pytest.raises(ArmFailed, match="the retriever fails at search 1"):
        search_all(HybridRetriever(pair[0], second=pair[1]), "river")


def test_the_name_tells_both_and_a_depth_is_positive():
    """The name holds both names; a depth below 1 is refused."""
    one, two = MemoryRetriever([], name="one"), MemoryRetriever([], name="two")
    both = HybridRetriever(one, second=two)
    assert both.name == "hybrid:one+two"
    one.name = "other"  # it has opened another index
    assert both.name == "hybrid:other+two"
    with pytest.raises(InvalidInput, match="depth"):
        HybridRetriever(one, second=two, depth=0)
