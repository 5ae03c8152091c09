"""The generated pages are up to date, and what they and /openapi.json describe is complete."""

import re
from typing import get_type_hints

import pytest

from docs.generate import DOCS, pages
from docs.generate.configuration import is_section, keys, sections
from ragbandit.client import exchange
from ragbandit.router.api.app import create_app
from ragbandit.router.api.schemas import requests
from ragbandit.router.config.settings import Settings

WRITTEN = pages()
SCHEMAS = create_app(lambda: None).openapi()["components"]["schemas"]


@pytest.mark.parametrize(
    ("body", "fields", "first"),
    [
        (requests.RouteBody, exchange.AskOptions, "question"),
        (requests.FeedbackBody, exchange.Judgement, "decision_id"),
        (requests.OutcomeBody, exchange.ReportedOutcome, "decision_id"),
    ],
)
def test_the_client_takes_the_fields_of_the_service(body, fields, first):
    """The client's types have exactly the fields of the HTTP body; the first field is its positional parameter."""
    assert {first, *get_type_hints(fields)} == set(body.model_fields)


@pytest.mark.parametrize("file", WRITTEN, ids=lambda file: file.name)
def test_pages_are_as_make_docs_writes_them(file):
    """The page in the repository is the one that the code generates; a failure is one line with the remedy."""
    if file.read_text(encoding="utf-8") != WRITTEN[file]:
        pytest.fail(f"run `make docs`: it writes {file.name} again", pytrace=False)


def test_every_setting_has_a_meaning():
    """Every setting has a row in its section of configuration.md, with a meaning."""
    page = WRITTEN[DOCS / "configuration.md"]
    for key, model, value in sections(Settings, value=Settings()):
        heading = f"## `{key}`" if key else "## Top level"
        section = page[page.index(f"{heading}\n") :].split("\n## ")[0]
        rows = re.findall(r"^\| `(\w+)` \| .* \| [^|]{5,} \|$", section, flags=re.M)
        assert set(rows) == {name for name in keys(model) if not is_section(getattr(value, name))}


@pytest.mark.parametrize("name", ["RouteBody", "OutcomeBody", "FeedbackBody", "FeedbackBatchBody"])
def test_examples_are_accepted(name):
    """The example of a body in /openapi.json is one that the service accepts."""
    getattr(requests, name).model_validate(SCHEMAS[name]["example"])


def test_every_field_is_described():
    """Every field of every object in /openapi.json has a description."""
    ours = SCHEMAS.keys() - {"HTTPValidationError", "ValidationError"}
    fields = {(name, field): shape for name in ours for field, shape in SCHEMAS[name]["properties"].items()}
    assert [key for key, shape in fields.items() if "description" not in shape] == []
