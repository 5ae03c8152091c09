from typing import Any

import pytest

from ragbandit.additions.skeleton.parts.retriever import OwnRetriever
from ragbandit.testing.retrievers import RETRIEVER_CHECKS


@pytest.mark.parametrize("check", RETRIEVER_CHECKS)
def test_retriever(check: Any) -> None:
    check(OwnRetriever)
