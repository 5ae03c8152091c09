"""The generated pages: up to date, complete, and their examples are taken."""

import json
import re
from typing import get_type_hints

import pytest

from docs.generate import DOCS, pages
from docs.generate.configuration import comments, is_section, keys, sections
from ragbandit.client import exchange
from ragbandit.router.api.app import create_app
from ragbandit.router.api.schemas.requests import FeedbackBatchBody, FeedbackBody, OutcomeBody, RouteBody
from ragbandit.router.config.settings import Settings

WRITTEN = pages()
BODIES = {
    "POST /v1/route": RouteBody,
    "POST /v1/answer": RouteBody,
    "POST /v1/outcomes": OutcomeBody,
    "POST /v1/feedback": FeedbackBody,
    "POST /v1/feedback/batch": FeedbackBatchBody,
}


@pytest.mark.parametrize(
    ("body", "fields", "first"),
    [
        (RouteBody, exchange.AskOptions, "question"),
        (FeedbackBody, exchange.Judgement, "decision_id"),
        (OutcomeBody, exchange.OutcomeFields, "decision_id"),
    ],
)
def test_the_client_takes_the_fields_of_the_service(body, fields, first):
    """The client's types have exactly the fields of the HTTP body; the first field is its positional parameter."""
    assert {first, *get_type_hints(fields)} == set(body.model_fields)


@pytest.mark.parametrize("file", WRITTEN, ids=lambda file: file.name)
def test_pages_are_up_to_date(file):
    """The page in the repository is the one that the code generates; if this test fails, run `make docs`."""
    assert file.read_text(encoding="utf-8") == WRITTEN[file], "run `make docs`"


def test_every_setting_is_on_the_page():
    """Every key has a row in its section, with its default and a meaning."""
    page = WRITTEN[DOCS / "configuration.md"]
    for key, model, value in sections(Settings, value=Settings()):
        heading = f"## `{key}`" if key else "## Top level"
        section = page[page.index(f"{heading}\n") :].split("\n## ")[0]
        rows = dict(re.findall(r"^\| `(\w+)` \| .* \| ([^|]+) \|$", section, flags=re.M))
        leaves = {name for name in keys(model) if not is_section(getattr(value, name))}
        assert set(rows) == leaves
        assert [name for name, meaning in rows.items() if len(meaning) < 5] == []


def test_a_comment_is_that_of_its_field():
    """The meaning of a setting is the comment right above it, however many lines it has."""
    said = comments(type(Settings().retriever))
    assert said["timeout_s"] == '"elasticsearch", "pgvector", "qdrant": timeout of a request, seconds'
    assert "folder of the index" in said["index"]
    assert said["index"].endswith('"qdrant": collection name')


@pytest.mark.parametrize("call", BODIES)
def test_examples_are_taken(call):
    """The body that the page shows for a call is one that the call accepts."""
    page = WRITTEN[DOCS / "http.md"]
    (sent,) = re.findall(r"^         -d '(.*)'$", page[page.index(f"## `{call}`\n") :].split("\n## ")[0], flags=re.M)
    BODIES[call].model_validate_json(sent)
    for item in json.loads(sent).get("items", ()):
        FeedbackBody.model_validate_json(json.dumps(item))


def test_every_call_is_on_the_page():
    """Every endpoint has a section with an example, its replies, and a link from the table of calls."""
    page = WRITTEN[DOCS / "http.md"]
    calls = re.findall(r"^\| \[`(\w+ /\S*)`\]\(#", page, flags=re.M)
    assert {"POST /v1/route", "POST /v1/answer", "GET /metrics"} <= set(calls)
    for call in calls:
        section = page[page.index(f"## `{call}`\n") :].split("\n## ")[0]
        assert "    curl -s " in section
        assert "| 200 |" in section or "| 202 |" in section
    assert set(BODIES) <= set(calls)


def test_every_field_is_described():
    """Every field of every object in /openapi.json has a description."""
    schemas = create_app(lambda: None).openapi()["components"]["schemas"]
    ours = {name: schema for name, schema in schemas.items() if name not in {"HTTPValidationError", "ValidationError"}}
    fields = {(name, field): shape for name, schema in ours.items() for field, shape in schema["properties"].items()}
    assert [key for key, shape in fields.items() if "description" not in shape] == []
