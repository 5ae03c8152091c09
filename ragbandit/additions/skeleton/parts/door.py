"""An interface over HTTP: lists the arms."""

from fastapi import Request
from fastapi.responses import Response

from ragbandit.hooks import Door
from ragbandit.router.api.dependencies import router_of
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.schemas.responses import JsonReply
from ragbandit.router.api.security.rules import APP

endpoints = Endpoints("Own")


@endpoints.get("/v1/own", rule=APP, summary="List the arms")
async def own_endpoint(request: Request) -> Response:
    """The names of all arms, in the order of the configuration."""
    return JsonReply({"arms": router_of(request).service.arms})


DOOR = Door(place=85, endpoints=(endpoints,), description="Own endpoints.")
