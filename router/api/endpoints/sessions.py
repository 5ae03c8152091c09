"""The endpoint of sessions: the decisions of a conversation."""

from typing import Annotated

from fastapi import Path as PathParameter
from fastapi import Query as QueryParameter
from fastapi import Request
from fastapi.responses import Response

from ragbandit.client.replies.decisions import SessionReply
from ragbandit.router.api.dependencies import caller_of, documented, reads_of, router_of
from ragbandit.router.api.schemas.replies import session_json
from ragbandit.router.api.schemas.requests import ID, SESSION
from ragbandit.router.api.schemas.responses import JsonReply, described
from ragbandit.router.api.security.ownership import tenant_of
from ragbandit.router.serving.checks.fields import checked_id
from ragbandit.router.serving.checks.questions import checked_session
from ragbandit.router.serving.conversations.queries import session_turns
from ragbandit.router.storage.decisions.sessions import MOST_LISTED

SessionPath = Annotated[
    str, PathParameter(description="The id that the conversation was given.", json_schema_extra=SESSION)
]
TenantParameter = Annotated[
    str | None,
    QueryParameter(
        description="Whose conversation it is; left out: the key's tenant, else `default`.", json_schema_extra=ID
    ),
]
LimitParameter = Annotated[
    int,
    QueryParameter(
        description=f"Decisions at most, 1 to {MOST_LISTED}; the newest ones.",
        json_schema_extra={"minimum": 1, "maximum": MOST_LISTED},
    ),
]

endpoints = documented("Decisions")


@endpoints.get(
    "/v1/sessions/{session_id:path}",
    summary="Read a conversation",
    responses={200: described("Its newest decisions.", SessionReply)},
)
async def session(
    session_id: SessionPath, request: Request, tenant: TenantParameter = None, limit: LimitParameter = 50
) -> Response:
    """The newest decisions of a conversation, the oldest of them first: questions, arms, how they ended.

    404 for a conversation without decisions, and for another tenant's.
    """
    given = None if tenant is None else checked_id(tenant, field="tenant")
    owner = tenant_of(caller_of(request), given=given)
    named, router = checked_session(session_id), router_of(request)
    turns = await reads_of(request).run(
        lambda: session_turns(router.database, session=named, tenant=owner, limit=limit)
    )
    return JsonReply(session_json(turns, session=named, tenant=owner, limit=limit))
