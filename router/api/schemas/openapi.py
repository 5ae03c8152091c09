"""The OpenAPI document: adds descriptions of fields, which are the texts below them in code, and a service's limits."""

import ast
import inspect
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, Final

from ragbandit.router.api.schemas.requests import STORABLE, TEXT
from ragbandit.router.config.context_schema import MOST_NUMBER, ContextKey
from ragbandit.router.policies.base import serves_prices
from ragbandit.router.serving.checks.questions import MAX_WORDS
from ragbandit.router.serving.prices import is_mean_cost
from ragbandit.router.serving.router import Router
from ragbandit.shared.types import MAX_TEXT

#: modules that define requests and replies; the text below a field describes the field
_MODULES: Final = (
    "ragbandit.shared.types.ledger",
    "ragbandit.router.learning.monitoring.arm_changes",
    "ragbandit.router.storage.ledgers.ledger",
    "ragbandit.router.comparison",
    "ragbandit.router.comparison.assessment",
    "ragbandit.router.learning.monitoring.drifts",
    "ragbandit.router.reporting.left_out",
    "ragbandit.router.reporting.reading",
    "ragbandit.router.rollouts.evidence",
    "ragbandit.router.rollouts.overview",
    "ragbandit.router.serving.explanations.chances",
    "ragbandit.router.serving.explanations.explain",
    "ragbandit.router.serving.overview",
    "ragbandit.router.queue.presence",
    "ragbandit.client.replies.decisions",
    "ragbandit.client.replies.status",
    "ragbandit.router.api.openai.errors",
    "ragbandit.router.api.openai.replies",
    "ragbandit.router.api.openai.requests",
    "ragbandit.router.replies.decisions",
    "ragbandit.router.replies.status",
    "ragbandit.router.api.schemas.requests",
    "ragbandit.router.api.endpoints.labels",
    "ragbandit.router.api.endpoints.policies",
    "ragbandit.router.api.endpoints.verdicts",
)


@cache
def _classes(modules: tuple[str, ...]) -> Mapping[str, object]:
    return {name: value for module in map(import_module, modules) for name, value in vars(module).items()}


@cache
def field_texts(modules: tuple[str, ...]) -> Mapping[str, Mapping[str, str]]:
    """Returns class name -> field -> text below the field. Fields of base classes are included."""
    texts: dict[str, dict[str, str]] = {}
    for module in map(import_module, modules):
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ClassDef):
                bases = [texts.get(base.id, {}) for base in node.bases if isinstance(base, ast.Name)]
                texts[node.name] = dict(ChainMap(_texts_below_fields(node), *bases))
    return texts


def _texts_below_fields(node: ast.ClassDef) -> dict[str, str]:
    return {
        field.target.id: text.value.value.replace("\n    ", " ")
        for field, text in pairwise(node.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def add_descriptions(api: dict[str, Any], *, further: tuple[str, ...]) -> dict[str, Any]:
    """Add the texts below the fields to an OpenAPI document. Pydantic itself would skip the texts of base classes.

    further: modules with more classes of requests and replies.
    """
    modules = (*_MODULES, *further)
    for name, schema in api["components"]["schemas"].items():
        for field, text in field_texts(modules).get(name, {}).items():
            shape = schema["properties"][field]
            if "$ref" in shape:  # OpenAPI 3.0 ignores other keys next to a reference
                shape["allOf"] = [{"$ref": shape.pop("$ref")}]
            shape["description"] = text
        if is_dataclass(_classes(modules).get(name)):  # the service sends all fields, even those that have defaults
            schema["required"] = list(schema["properties"])
            for shape in schema["properties"].values():
                shape.pop("default", None)
    return api


def add_limits(api: dict[str, Any], *, router: Router, most_items: int) -> dict[str, Any]:
    """Add the limits of one service to an OpenAPI document. most_items: size of the largest batch of feedback."""
    schemas, settings = api["components"]["schemas"], router.settings
    route, feedback = schemas["RouteBody"]["properties"], schemas["FeedbackBody"]["properties"]
    (array,) = [shape for shape in route["arms"]["anyOf"] if shape["type"] == "array"]
    array["items"]["enum"] = list(router.service.arms)
    for name, schema in schemas.items():
        body = schema.get("properties", {})
        if not name.endswith("Body") or not {"aim", "cost_weight"} <= body.keys():
            continue  # only the bodies of questions have both fields
        _limit_price(body["cost_weight"], names=list(settings.cost_weights))
        for name in list(body["aim"]["properties"]):
            if name != "quality" and not is_mean_cost(name, terms=settings.reward.cost):
                del body["aim"]["properties"][name]
        if not serves_prices(router.service.serving.policy):  # requests cannot choose the cost weight
            body["aim"]["anyOf"] = body["cost_weight"]["anyOf"] = [{"type": "null"}]
    if settings.context:
        route["context"]["properties"] = {name: _schema_of_key(key) for name, key in settings.context.items()}
    feedback["reward"].update(minimum=settings.reward.minimum, maximum=settings.reward.maximum)
    feedback["event"]["enum"] = [*sorted(settings.feedback_events), None]
    schemas["RouteBatchBody"]["properties"]["items"]["maxItems"] = settings.server.max_batch_items
    schemas["FeedbackBatchBody"]["properties"]["items"]["maxItems"] = most_items
    return api


def _limit_price(schema: dict[str, Any], *, names: list[str]) -> None:
    schema["anyOf"] = [part for part in schema["anyOf"] if part["type"] != "string"]
    if names:
        schema["anyOf"].append({"type": "string", "enum": names})


def _schema_of_key(key: ContextKey) -> dict[str, Any]:
    if key.is_computed:
        return {"not": {}, "description": f"computed from the question (type: {key.type})"}
    kinds: dict[str, dict[str, Any]] = {
        "number": {"type": "number", "minimum": -MOST_NUMBER, "maximum": MOST_NUMBER},
        "boolean": {"type": "boolean"},
        "category": {"type": "string", "maxLength": MAX_TEXT, **STORABLE},
        "words": {"type": "array", "maxItems": min(key.most_words, MAX_WORDS), "items": {"type": "string", **TEXT}},
    }
    return {"anyOf": [kinds[key.type], {"type": "null"}]}
