"""What the documentation and the examples show runs."""

import pytest

from tests.clients.pages import check_example, check_page


@pytest.mark.parametrize("page", ["llama-index"])
def test_the_page(page, judged):
    """The page's code runs, and its feedback is stored."""
    check_page(page, judged)


@pytest.mark.parametrize("name", ["llama_index"])
def test_the_example(name, judged, capsys):
    """The program prints an answer, and its feedback is stored."""
    check_example(name, judged, capsys)
