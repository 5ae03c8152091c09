from ragbandit.additions.skeleton.parts.door import DOOR
from ragbandit.testing.doors import check_door


def test_door() -> None:
    check_door(DOOR)
