"""Names of callers in the audit log."""

from fastapi import Request

from ragbandit.router.api.dependencies import caller_of
from ragbandit.router.api.security.rules import is_page


def actor_of(request: Request) -> str:
    caller, client = caller_of(request), request.client
    if caller.key is not None:
        return caller.key if caller.is_person else f"key:{caller.key}"
    if not is_page(request.scope["path"]):
        return "http:without a key"
    return f"page:{'unknown' if client is None else client.host}"
