"""Explanations of decisions as replies."""

from dataclasses import fields
from typing import Any

from ragbandit.router.replies.decisions import record_json
from ragbandit.router.serving.explanations.explain import Explanation


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    values = {field.name: getattr(explanation, field.name) for field in fields(explanation)}
    return {**values, "record": record_json(explanation.record)}
