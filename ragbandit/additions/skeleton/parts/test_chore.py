from ragbandit.additions.skeleton.parts.chore import OwnChore
from ragbandit.testing.chores import check_chore


def test_chore() -> None:
    check_chore(OwnChore)
