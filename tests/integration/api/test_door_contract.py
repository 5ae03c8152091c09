"""The contract of interfaces over HTTP: the check names what a door does wrong."""

from typing import Annotated, Any

import pytest
from fastapi import Header, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict

from ragbandit.router.api.dependencies import router_of
from ragbandit.router.api.door import Door
from ragbandit.router.api.doors import DOORS
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.schemas.responses import JsonReply
from ragbandit.router.api.security.rules import APP
from ragbandit.shared.errors import InvalidInput, NotFound
from ragbandit.testing.doors import check_door

NAMES = {"names": ["first"]}


class NamesBody(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": NAMES})

    names: list[str]


class Plain(BaseModel):
    names: list[str]


def reply(scope, status, error, headers):
    return JSONResponse({"fault": {"text": error["message"]}, "id": "x"}, status, headers)


def arms(request: Request) -> list[str]:
    return [str(arm) for arm in router_of(request).service.arms]


def made(
    function=None, *, body: Any = NamesBody, path: str = "/v1/list/count", summary: str | None = "Count", **more: Any
) -> Door:
    """A door with three endpoints. function: from the body to the reply of one of them; more: fields of the door."""
    endpoints = Endpoints("List")

    @endpoints.get("/v1/list/{name}", rule=APP, summary="Look for an arm")
    async def find(name: str, request: Request) -> Response:
        """Whether there is an arm of this name."""
        if name not in arms(request):
            raise NotFound("no such arm", field="name")
        return JsonReply({"name": name})

    async def count(body, request: Request) -> Response:
        """How many of these are arms."""
        if function is not None:
            return function(body)
        if len(body.names) > 10:
            raise InvalidInput("too many", field="names")
        return JsonReply({"count": len({*body.names} & {*arms(request)})})

    count.__annotations__["body"] = body
    endpoints.post(path, rule=APP, **({} if summary is None else {"summary": summary}))(count)
    usual = {"place": 201, "speaks": lambda scope: scope["path"].startswith("/v1/list"), "error": reply}
    return Door(endpoints=(endpoints,), **{**usual, **more})


def reading(number):
    """A door whose endpoint reads a number from its query or from a header."""
    endpoints = Endpoints("List")

    @endpoints.get("/v1/list", rule=APP, summary="List some arms")
    async def some(most: str = "3", x_least: Annotated[str, Header()] = "0") -> Response:
        """As many arms as the caller wants."""
        return JsonReply({"count": number(most=most, least=x_least)})

    return Door(place=201, endpoints=(endpoints,))


class Line:
    """Something that is kept open."""

    async def close(self) -> None:
        return None


def test_a_door_at_a_path_that_has_a_hint_follows_the_contract():
    """A door with errors of its own that keeps something open on each port follows the contract; its endpoint at a path
    for which the core has a hint refuses another method with 405.
    """
    path, speaks = "/v9own/models/{model:path}:ask", lambda scope: scope["path"].startswith(("/v1/list", "/v9own/"))
    door = made(path=path, speaks=speaks, open=lambda router: Line())
    check_door(door, bodies={f"POST {path}": NAMES}, values={"name": "first"})


def test_a_door_of_the_core_follows_the_contract():
    """Chat completions are read, refused and documented as the contract says."""
    check_door(DOORS["openai"])


def failing(body):
    raise KeyError(body.names[0])


def without_names(body):
    return JsonReply({}) if body.names else JSONResponse({"message": "give a name"}, 422)


def as_text(body):
    return JsonReply({}) if body.names else PlainTextResponse("give a name", 422)


class Brittle(BaseModel):
    """A body with fields of any type, which its endpoint does not check."""

    model_config = ConfigDict(json_schema_extra={"example": NAMES})
    names: Any


def unshaped(scope, status, error, headers):
    if status == 413:
        return JSONResponse({"error": error["message"]}, status, headers)
    return reply(scope, status, error, headers)


def accepting(scope, status, error, headers):
    return reply(scope, 200 if status == 422 else status, error, headers)


def unwaited(scope, status, error, headers):
    return reply(scope, status, error, {})


class Blocking:
    """Is closed by a function that no event loop can await."""

    def close(self):
        return None


SHARED = Line()


def check_again(body):
    raise InvalidInput("no")


BROKEN = {
    "a place that is taken": (made(place=DOORS["feedback"].place), "stand at one place, 60"),
    "a path that is taken": (made(path="/v1/route"), "POST /v1/route has 2 endpoints"),
    "a remedy that is missing": (made(instead={"lists": " "}), "has no remedy for 'lists'"),
    "errors for other paths": (made(speaks=lambda scope: False), "`speaks` is False for /v1/list/"),
    "errors of another form": (made(error=unshaped), "an error has the form"),
    "errors of an endpoint": (made(without_names), "an error has the form"),
    "errors as text": (made(as_text), "an error has the form .*text/plain"),
    "a status of its own": (made(error=accepting), r"with the body b'': 200"),
    "headers that are lost": (made(error=unwaited), "a 405 of .* does not allow it|no Retry-After in a 429"),
    "a fault of the endpoint": (made(failing), "failed: "),
    "a fault by a damaged field": (
        made(lambda body: JsonReply({"n": len(body.names)}), body=Brittle),
        "with the body .* failed",
    ),
    "a number of a query": (reading(lambda most, least: int(most)), "with the query most=.* failed"),
    "a number of a header": (reading(lambda most, least: int(least)), "with the header x-least: .* failed"),
    "one for two ports": (made(open=lambda router: SHARED), "1 of what it returned was closed"),
    "a close that blocks": (made(open=lambda router: Blocking()), "cannot be closed: TypeError"),
    "chats that it changes": (made(in_chat_form=lambda body: ({**body, "n": 1}, [])), "changes the body of a chat"),
    "no example": (made(body=Plain), "takes a body: give one"),
    "a body of its author that it does not take": (made(check_again), "does not take its body: 422"),
    "no summary": (made(summary=None), "has no summary"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_door_that_breaks_the_contract_is_named(case):
    """The check says what a door does wrong."""
    door, fault = BROKEN[case]
    with pytest.raises(AssertionError, match=fault):
        check_door(door, bodies={"POST /v1/list/count": NAMES} if "of its author" in case else None)
