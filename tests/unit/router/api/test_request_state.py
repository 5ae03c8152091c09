"""The state of a request is one object in its ASGI scope."""

from fastapi import Request

from ragbandit.router.api.dependencies import caller_of
from ragbandit.router.api.request_state import STATE, request_state
from ragbandit.shared.types import Caller


def test_all_who_serve_a_request_share_its_state():
    """The scope has one key for the state, and a copy of the scope has the same state."""
    scope = {"type": "http"}
    request_state(scope).caller = caller = Caller(role="app")
    assert caller_of(Request({**scope, "path": "/"})) is caller
    assert scope.keys() == {"type", STATE}
    assert caller_of(Request({"type": "http"})) == Caller()
