"""Forms of pages: their fields, and that they come from a page of ours."""

from typing import Final
from urllib.parse import parse_qsl

from fastapi import Request

from ragbandit.router.api.dependencies import caller_of
from ragbandit.router.api.security.page_sessions import PageSessions, needs_session
from ragbandit.router.api.security.sites import check_site
from ragbandit.shared.errors import Forbidden, InvalidInput

#: fields of a form, and bytes of it
MAX_FIELDS: Final = 20
MAX_BYTES: Final = 16_384
_TYPE: Final = "application/x-www-form-urlencoded"


async def form_of(request: Request, *fields: str, key: str | None = None) -> dict[str, str]:
    """The fields of a form, "" for one that was left out. key: in force while the form was made; None: the caller's.

    Raises Forbidden for a form that another page has made, InvalidInput for what is no form or has other fields.
    """
    headers = request.scope["headers"]
    check_site(headers, method=request.method)
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _TYPE:
        raise InvalidInput("this takes a form", field="content-type", remedy=f"send {_TYPE}")
    body = await request.body()
    try:
        sent = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"))
    except ValueError as error:
        raise InvalidInput("the form cannot be read", field="body", remedy="load the page again") from error
    token = sent.pop("form_token", "")
    if needs_session(request.scope["path"], headers):  # a key in a header is sent by no browser on its own
        sessions: PageSessions = request.app.state.page_sessions
        key = caller_of(request).key if key is None else key
        if not await sessions.is_own_form(headers, token, key=key):
            remedy = "load the page again, and allow cookies for it"
            raise Forbidden("this form was not made by a page of this session", field="form_token", remedy=remedy)
    unknown = sorted(set(sent) - set(fields))
    if len(body) > MAX_BYTES or unknown:
        message = f"the form has an unknown field {unknown[0]!r:.80}" if unknown else "the form is too long"
        raise InvalidInput(message, field="body", remedy=f"send {', '.join(fields) or 'no field'}")
    return {name: sent.get(name, "").strip() for name in fields}


def actor_of(request: Request) -> str:
    """Who acts, for the audit log."""
    caller = caller_of(request)
    if caller.key is not None:
        return caller.key if caller.is_person else f"key:{caller.key}"
    client = request.client
    return f"page:{'unknown' if client is None else client.host}"
