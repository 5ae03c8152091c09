"""Models, in the shape of OpenAI or, if its header is sent, of Anthropic."""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Path as PathParameter, Request
from fastapi.responses import Response

from ragbandit.router.api.anthropic.errors import speaks_anthropic
from ragbandit.router.api.dependencies import caller_of, router_of
from ragbandit.router.api.openai import errors, replies, requests
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.schemas.responses import JsonReply, described
from ragbandit.router.api.security.rules import APP

endpoints = Endpoints("OpenAI", errors=errors.ERRORS, any_parameter=True)


@endpoints.get(
    "/v1/models",
    rule=APP,
    summary="List the models",
    responses={200: described("All models.", replies.ModelList)},
)
async def models(request: Request) -> Response:
    """List the models: `auto` lets the policy choose the arm, `auto:<price>` does so at a price of the setting
    `cost_weights`, and `arm/<name>` is an arm that our workers run.
    """
    models = requests.model_list(router_of(request), caller=caller_of(request))
    return JsonReply(model_page(models) if speaks_anthropic(request.scope) else models)


@endpoints.get(
    "/v1/models/{model:path}",
    rule=APP,
    summary="Read one model",
    responses={200: described("The model.", replies.Model)},
)
async def model(
    model: Annotated[str, PathParameter(description="Its id, for example `auto` or `arm/single_step`.")],
    request: Request,
) -> Response:
    """Read the model of this name; 404 with the code `model_not_found` if there is no such model."""
    requests.choice_of(model, router=router_of(request), field=None)
    named = requests.named_model(model)
    return JsonReply(model_info(named) if speaks_anthropic(request.scope) else named)


def model_info(model: replies.Model) -> dict[str, Any]:
    """A model in Anthropic's shape."""
    made_at = datetime.fromtimestamp(model["created"], UTC).isoformat()
    name = model["id"]
    return {"type": "model", "id": name, "display_name": name, "created_at": made_at, "lifecycle": "active"}


def model_page(models: replies.ModelList) -> dict[str, Any]:
    """All models in Anthropic's shape."""
    data = list(map(model_info, models["data"]))
    ids = [info["id"] for info in data] or [None]
    return {"data": data, "has_more": False, "first_id": ids[0], "last_id": ids[-1]}
