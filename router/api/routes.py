"""Endpoints, which read their own requests, and the table that finds the endpoint of a request.

FastAPI documents the endpoints. Its own routing, dependencies and body readers are not used: for a small request they
take longer than a decision.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fastapi import Request
from fastapi.exceptions import HTTPException
from fastapi.routing import APIRoute
from starlette.types import ASGIApp

from ragbandit.router.api.reading import body_value, reads_body
from ragbandit.router.api.schemas.requests import invalid_input_of
from ragbandit.router.api.schemas.responses import ERRORS
from ragbandit.router.api.security.rules import AccessRule, is_page
from ragbandit.shared.errors import InvalidInput

if TYPE_CHECKING:
    from fastapi._compat import ModelField

_Function = TypeVar("_Function", bound=Callable[..., Awaitable[ASGIApp]])

#: kind of parameter in FastAPI's description of a function -> attribute of a request that has the values
_SOURCES: Final = {"path_params": "path_params", "query_params": "query_params", "header_params": "headers"}
#: marks a parameter that has no default
_REQUIRED: Final = object()


class Endpoint(APIRoute):
    """A function that replies to requests. Its parameters are read from the path, the query, headers and a JSON body.

    rule: who may call it. any_parameter: whether unknown query parameters are ignored. documented: options of APIRoute.
    """

    def __init__(
        self,
        path: str,
        function: Callable[..., Any],
        *,
        method: str,
        rule: AccessRule,
        any_parameter: bool = False,
        **documented: Any,
    ) -> None:
        self.method, self.rule = method, rule
        super().__init__(path, function, methods=[method], response_model=None, **documented)
        self.path_regex = re.compile(self.path_regex.pattern, re.DOTALL)  # an id in a path may have line breaks
        self._any_parameter = any_parameter or rule.is_probe or not self.include_in_schema
        #: (attribute of a request that has the values, parameter, its default)
        self._parameters: list[tuple[str, ModelField, Any]] = [
            (source, field, _REQUIRED if field.field_info.is_required() else field.get_default())
            for kind, source in _SOURCES.items()
            for field in getattr(self.dependant, kind)
        ]

    @property
    def is_for_operators(self) -> bool:
        """Whether the port of operators serves the endpoint, if there is one."""
        return is_page(self.path) or self.rule.is_for_operators

    def get_route_handler(self) -> Callable[[Request], Any]:
        return self.reply

    async def reply(self, request: Request) -> ASGIApp:
        """Read a request and call the function. Raises the errors of `arguments` and of the function."""
        reply: ASGIApp = await self.endpoint(**await self.arguments(request))
        return reply

    async def arguments(self, request: Request) -> dict[str, Any]:
        """Read the function's arguments from a request. Raises InvalidInput and HTTPException(400)."""
        if request.scope["query_string"] and not self._any_parameter:
            self._check_query(request)
        values: dict[str, Any] = {}
        if self.dependant.request_param_name is not None:
            values[self.dependant.request_param_name] = request
        for source, field, default in self._parameters:
            sent = getattr(request, source).get(field.alias)
            if sent is None and default is _REQUIRED:
                raise invalid_input_of({"type": "missing", "loc": (field.alias,)})
            values[field.name] = default if sent is None else _validated(field, sent, location=(field.alias,))
        if self.body_field is not None:
            values[self.body_field.name] = await _body_of(request, self.body_field)
        return values

    def _check_query(self, request: Request) -> None:
        """Raises InvalidInput for an unknown query parameter."""
        known = sorted(field.alias for field in self.dependant.query_params)
        for name in request.query_params:
            if name not in known:
                remedy = f"use {', '.join(known)}" if known else f"send what {self.path} takes in the path or the body"
                message = f'"{name[:80]}" is not a query parameter of {self.path}'
                raise InvalidInput(message, field=name[:80], remedy=remedy)


def _validated(field: "ModelField", sent: object, *, location: tuple[str, ...]) -> Any:
    value, errors = field.validate(sent, loc=location)
    if errors:
        raise invalid_input_of(errors[0])
    return value


async def _body_of(request: Request, field: "ModelField") -> Any:
    """Read and validate the JSON body. Raises HTTPException(400) if it is not JSON, and InvalidInput if it is missing,
    not declared as JSON, or has wrong or too many values.
    """
    body = await request.body()
    if not body:
        raise invalid_input_of({"type": "missing", "loc": ()})
    check_json(request)
    return await _parse_body(field, request, body)


def check_json(request: Request) -> None:
    """Raises InvalidInput if the body of a request is not declared as JSON."""
    content_type = request.headers.get("content-type")
    kind = (content_type or "").partition(";")[0].strip().lower()
    # A page of another site may send bodies of a few other types without asking, so JSON must be declared.
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        came = "without a content type" if content_type is None else f"as {content_type:.80}"
        remedy = "send the header content-type: application/json"
        raise InvalidInput(f"the body came {came}, not as JSON", field="content-type", remedy=remedy)


@reads_body
def _parse_body(field: "ModelField", _request: Request, body: bytes) -> Any:
    try:
        value = body_value(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400) from error
    return _validated(field, value, location=())


class Endpoints:
    """Collects the endpoints of a module. tag: heading in /docs; None for pages and files, which are not documented.

    errors: error replies for /docs. any_parameter: whether unknown query parameters are ignored.
    """

    def __init__(
        self,
        tag: str | None = None,
        *,
        errors: Mapping[int | str, dict[str, Any]] = ERRORS,
        any_parameter: bool = False,
    ) -> None:
        self.routes: list[Endpoint] = []
        self.tag, self._any_parameter = tag, any_parameter
        self._errors = {} if tag is None else errors

    def get(self, path: str, *, rule: AccessRule, **documented: Any) -> Callable[[_Function], _Function]:
        """Declare the endpoint `GET path`. documented: options of fastapi.routing.APIRoute."""
        return self._declare("GET", path, rule=rule, documented=documented)

    def post(self, path: str, *, rule: AccessRule, **documented: Any) -> Callable[[_Function], _Function]:
        """Declare the endpoint `POST path`, like `get`."""
        return self._declare("POST", path, rule=rule, documented=documented)

    def _declare(
        self, method: str, path: str, *, rule: AccessRule, documented: Mapping[str, Any]
    ) -> Callable[[_Function], _Function]:
        options = {"include_in_schema": self.tag is not None, "tags": [self.tag] if self.tag else [], **documented}
        options["responses"] = {**self._errors, **documented.get("responses", {})}

        def declare(function: _Function) -> _Function:
            any_parameter = self._any_parameter
            self.routes.append(
                Endpoint(path, function, method=method, rule=rule, any_parameter=any_parameter, **options)
            )
            return function

        return declare


class RouteTable:
    """Finds the endpoint of a request among the endpoints that a port serves."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        #: (method, path) -> endpoint whose path has no parameters
        self._plain: dict[tuple[str, str], Endpoint] = {}
        self._patterns: list[Endpoint] = []
        self.has_pages = False
        for endpoint in endpoints:
            self.has_pages = self.has_pages or is_page(endpoint.path)
            if endpoint.param_convertors:
                self._patterns.append(endpoint)
            else:
                self._plain[endpoint.method, endpoint.path] = endpoint

    def find(self, method: str, path: str) -> tuple[Endpoint | None, dict[str, str]]:
        """Returns (endpoint, parameters in the path); (None, {}) if there is none."""
        endpoint = self._plain.get((method, path))
        if endpoint is not None:
            return endpoint, {}
        for endpoint in self._patterns:
            match = endpoint.path_regex.match(path) if method == endpoint.method else None
            if match is not None:
                return endpoint, match.groupdict()
        return None, {}

    def methods(self, path: str, *, without_names: bool = False) -> list[str]:
        """The methods that a path takes; [] if there is no such path.

        without_names: leave out endpoints whose declared path ends with a parameter, since its value may be a path of
        another interface, as in /v1/models/{model}
        """
        found = self._endpoints(path)
        return sorted({one.method for one in found if not (without_names and one.path.endswith("}"))})

    def is_for_programs(self, path: str) -> bool:
        """Whether only programs call the endpoints of a path; True if there are none, so that a page can read a 404."""
        return not is_page(path) and all(endpoint.rule.is_for_programs for endpoint in self._endpoints(path))

    def _endpoints(self, path: str) -> list[Endpoint]:
        plain = [endpoint for (_, known), endpoint in self._plain.items() if known == path]
        return plain + [endpoint for endpoint in self._patterns if endpoint.path_regex.match(path)]


def table_of_port(endpoints: Iterable[Endpoint], *, port: str, dashboard: bool) -> RouteTable:
    """The table of a port. port: "all", or "public" and "operators" if server.admin_port makes it two ports.

    dashboard: whether pages are served.
    """
    return RouteTable(
        endpoint
        for endpoint in endpoints
        if dashboard or not is_page(endpoint.path)
        if port == "all" or endpoint.rule.on_both_ports or endpoint.is_for_operators == (port == "operators")
    )
