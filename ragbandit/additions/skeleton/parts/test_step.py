from ragbandit.additions.skeleton.parts.step import OwnStep
from ragbandit.shared.types import Query
from ragbandit.testing.steps import check_step


def test_step() -> None:
    arms = {name: {"run_by": "caller"} for name in ("one", "two", "three")}
    check_step(OwnStep, questions=[Query(text="Who?", context={"hurry": True})], settings={"arms": arms})
