"""Models in Anthropic's shape."""

from datetime import UTC, datetime
from typing import Any

from ragbandit.router.api.openai.replies import ListedModel, ModelList


def anthropic_models(models: ListedModel | ModelList) -> dict[str, Any]:
    """A model, or a list of models, in Anthropic's shape."""
    if models["object"] == "model":
        return _model_info(models)
    data = list(map(_model_info, models["data"]))
    ids = [info["id"] for info in data] or [None]
    return {"data": data, "has_more": False, "first_id": ids[0], "last_id": ids[-1]}


def _model_info(model: ListedModel) -> dict[str, Any]:
    made_at = datetime.fromtimestamp(model["created"], UTC).isoformat()
    name = model["id"]
    window = {"max_input_tokens": model["context_length"]} if "context_length" in model else {}
    info = {"type": "model", "id": name, "display_name": name, "created_at": made_at, "lifecycle": "active"}
    return {**info, **window}
