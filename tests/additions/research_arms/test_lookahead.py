"""The pool of the arms that look ahead: the passages of the latest search."""

from hypothesis import given, strategies as st

from ragbandit.additions.research_arms.lookahead import LatestPool
from ragbandit.strategies.base import Hit, Passage
from tests.support.arms.arm_runs import run_of


def hit(identity, *, score):
    passage = Passage(id=identity, title=f"title {identity * 4}", text=f"text of {identity} " + identity * 5)
    return Hit(passage=passage, score=score)


HITS = [hit(name, score=score) for name in "abcdefgh" for score in (1, 2, 3)]


@given(
    cap=st.integers(0, 4),
    most=st.none() | st.integers(0, 6),
    steps=st.lists(st.lists(st.sampled_from(HITS), max_size=4) | st.integers(0, 4), max_size=60),
)
def test_a_pool_never_has_more_shown_than_the_budget_allows(cap, most, steps):
    """Whatever is found and shown, in any order, the budget of distinct passages holds.

    A step is what a search found, or the number of held passages that a prompt had room for.
    """
    run = run_of(passages=most)
    pool, shown = LatestPool(run, cap=cap), set()
    for step in steps:
        if isinstance(step, int):
            shown |= {passage.id for passage in pool.passages[:step]}
            run.note_shown(pool.passages[:step])
            assert run.cost.passages == len(shown)
            continue
        sifted = pool.add(step)
        told = [*sifted.added, *(name for name, _ in sifted.skipped)]
        assert sorted(told) == sorted(each.passage.id for each in step)
        assert len(pool.passages) <= cap
        assert most is None or len(shown | {passage.id for passage in pool.passages}) <= most
