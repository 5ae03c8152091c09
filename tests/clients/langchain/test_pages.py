"""What the documentation and the examples show runs."""

import pytest

from ragbandit import Client
from tests.clients.pages import run_example, run_page


@pytest.fixture
def judged(monkeypatch):
    """The receipts of the judgements that the code sends."""
    receipts, send = [], Client.feedback

    def feedback(client, decision_id, **body):
        receipts.append(send(client, decision_id, **body))
        return receipts[-1]

    monkeypatch.setattr(Client, "feedback", feedback)
    return receipts


@pytest.mark.parametrize("page", ["langchain", "langgraph"])
def test_the_page(page, judged):
    """The page's code runs, and its feedback is stored."""
    run_page(f"docs/integrations/{page}.md")
    assert judged
    assert not [receipt for receipt in judged if "degraded" in receipt]


@pytest.mark.parametrize("name", ["langchain", "langgraph"])
def test_the_example(name, judged, capsys):
    """The program prints an answer, and its feedback is stored."""
    run_example(f"{name}_router")
    assert capsys.readouterr().out.strip()
    assert [("degraded" in receipt, receipt["waiting_for"]) for receipt in judged] == [(False, None)]
