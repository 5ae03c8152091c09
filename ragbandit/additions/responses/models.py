"""The list of models in the form that Codex reads, with the properties of a model that Codex needs."""

from typing import Any, Final

from starlette.types import Scope

from ragbandit.router.api.openai.replies import ListedModel, ModelList

_MODELS: Final = "/v1/models"
#: query parameter with which Codex requests this form
_VERSION: Final = b"client_version="
#: Codex takes a model's instructions from the list, and refuses a list without them
_INSTRUCTIONS: Final = (
    "You are a coding agent that works on a user's machine by the tools of this request. Read the files that matter "
    "before you change anything, make the smallest change that does what the user asks, and keep the code's style. "
    "Run the tests or the program to see that it works, and mend what fails. Do not undo changes that are not yours, "
    "and do not commit or delete anything unless the user asks for it. Keep going until the task is done; ask only if "
    "you cannot go on. At the end say briefly what you changed, where, and what you did not check."
)
#: facts that Codex needs about a model; the kind of an arm is not known, so these are the simplest values
_PROPERTIES: Final[dict[str, Any]] = {
    "supported_reasoning_levels": [],
    "shell_type": "shell_command",
    "visibility": "list",
    "supported_in_api": True,
    "upgrade": None,
    "base_instructions": _INSTRUCTIONS,
    "supports_reasoning_summaries": False,
    "support_verbosity": False,
    "default_verbosity": None,
    "apply_patch_tool_type": "freeform",
    "truncation_policy": {"mode": "tokens", "limit": 10_000},
    "supports_parallel_tool_calls": True,
    "experimental_supported_tools": [],
}


def asks_for_codex_models(scope: Scope) -> bool:
    query: bytes = scope.get("query_string", b"")
    return scope["path"] == _MODELS and _VERSION in query


def codex_models(models: ListedModel | ModelList) -> dict[str, Any]:
    """A list of models in Codex's form, in our order; a single model as it is."""
    if models["object"] == "model":
        return dict(models)
    return {"models": [_codex_model(model, place=place) for place, model in enumerate(models["data"])]}


def _codex_model(model: ListedModel, *, place: int) -> dict[str, Any]:
    name = model["id"]
    window = {"context_window": model["context_window"]} if "context_window" in model else {}
    names = {"slug": name, "display_name": name, "description": "A model of RagBandit", "priority": place}
    return {**names, **_PROPERTIES, **window}
