"""Feedback from browsers: tokens that an application makes for what it shows, and the judgements that use them."""

import time
from concurrent.futures import Future
from dataclasses import replace

from fastapi import Request
from fastapi.responses import Response

from ragbandit.client.replies.feedback import FeedbackTokenReply
from ragbandit.router.api.dependencies import awaited, caller_of, documented, reads_of, router_of
from ragbandit.router.api.endpoints.feedback import STORED, count_feedback
from ragbandit.router.api.limiting.quotas import Quotas
from ragbandit.router.api.schemas.replies import receipt_json
from ragbandit.router.api.schemas.requests import BrowserFeedbackBody, FeedbackTokenBody
from ragbandit.router.api.schemas.responses import JsonReply, described, refusal
from ragbandit.router.api.security.feedback_tokens import (
    TOKEN_KINDS,
    FeedbackToken,
    TokenKind,
    read_token,
    signed,
)
from ragbandit.router.api.security.ownership import check_owner
from ragbandit.router.api.tracing import tell_feedback
from ragbandit.router.serving.checks.fields import checked_id
from ragbandit.router.serving.checks.reports import checked_rater, made_feedback
from ragbandit.router.storage.access.service_secrets import shared_secret
from ragbandit.router.storage.decisions.vote_limits import VoteLimit, refused_votes
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import Forbidden, InvalidInput, RagBanditError, Unauthorized
from ragbandit.shared.types import Feedback, Receipt

#: judgements that are stored of one rater of a decision that comes with tokens; the last one counts
MAX_VOTES = 20
_BROWSER = "/v1/feedback/browser"

endpoints = documented("Feedback")


@endpoints.post(
    "/v1/feedback/token",
    summary="Let a browser judge a decision",
    responses={200: described("The token.", FeedbackTokenReply)},
)
async def token(body: FeedbackTokenBody, request: Request) -> Response:
    """Sign a token with which a browser may judge this decision without a key, for a time.

    The decision need not be answered yet. Every process of a store takes the tokens of the others.
    """
    await check_owner(request, checked_id(body.decision_id, field="decision_id"))
    longest = router_of(request).settings.server.browser_feedback_s
    if body.expires_s is not None and not 0 < body.expires_s <= longest:
        remedy = f"send at most {longest:g} (server.browser_feedback_s)"
        raise InvalidInput(f"a token cannot last {body.expires_s:g} s", field="expires_s", remedy=remedy)
    issued = FeedbackToken(
        decision_id=body.decision_id,
        expires_at=int(time.time() + (body.expires_s or min(longest, 3 * 3600.0))),
        kinds=_kinds(body.kinds),
        rater=checked_rater(body.rater),
        api_key=caller_of(request).key,
    )
    text = signed(issued, secret=await _secret(request))
    reply: FeedbackTokenReply = {"token": text, "expires_at": issued.expires_at}
    return JsonReply(reply)


@endpoints.post(
    _BROWSER,
    status_code=202,
    summary="Judge a decision with a token",
    responses=STORED,
)
async def browser(body: BrowserFeedbackBody, request: Request) -> Response:
    """Store a judgement of somebody who was shown the answer. The token says who may judge what; no key is needed.

    A later judgement of the same token replaces the earlier. Pages of the sites in `server.feedback_origins` may
    call this from their own scripts.
    """
    try:
        reply = await _judged(body, request)
    except RagBanditError as error:
        reply = refusal(error, scope=request.scope)
    reply.headers.update(_allowed(request))
    return reply


@endpoints.options(_BROWSER, include_in_schema=False)
async def preflight(request: Request) -> Response:
    """Tell a browser whether a page of that site may send a judgement."""
    allowed = _allowed(request)
    if allowed:
        allowed |= {
            "Access-Control-Allow-Methods": "POST",
            "Access-Control-Allow-Headers": "content-type",
            "Access-Control-Max-Age": "600",
        }
    return Response(status_code=204, headers=allowed)


async def _judged(body: BrowserFeedbackBody, request: Request) -> Response:
    now, router = time.time(), router_of(request)
    token = read_token(body.token, secret=await _secret(request), now=now)
    tenant = await _tenant_of(request, token)
    kind = body.retract or ("rating" if body.rating is not None else "event")
    if kind not in token.kinds:
        raise Forbidden(f"this token allows no {kind:.20}", field="token", remedy=f"send {' or '.join(token.kinds)}")
    item = made_feedback(
        decision_id=token.decision_id,
        settings=router.settings,
        now=now,
        rating=body.rating,
        scale=body.scale,
        event=body.event,
        retract=body.retract,
        rater=token.voter,
    )
    item = replace(item, api_key=token.api_key)
    receipt = await _stored(request, item, tenant=tenant)
    count_feedback(request, item, receipt)
    await tell_feedback(request, [(item, receipt)])
    return JsonReply(receipt_json(receipt), status_code=202)


async def _stored(request: Request, item: Feedback, *, tenant: str) -> Receipt:
    """The receipt of a judgement within the votes of its rater and the quota of the tenant.

    Raises Forbidden, Conflict, QuotaSpent: a token is no way to fill the store. What is not stored takes no quota, also
    where the caller has gone before.
    """
    router = router_of(request)
    quotas: Quotas = request.app.state.quotas
    limit = VoteLimit(votes=MAX_VOTES, raters=router.settings.server.browser_feedback_raters)
    # Of many at once this lets too many through; where they are stored it is exact. But what is refused here costs no
    # write, and takes none of the quota in between, which is for the others.
    refused = await reads_of(request).run(lambda: _refused(router.database, item, limit=limit))
    if refused is not None:
        raise refused
    await quotas.take("feedback", tenant=tenant)
    pending: Future[Receipt] | None = None
    try:
        pending = router.submit_feedback(item, limit=limit)
        return await awaited(request, pending, what="token")
    except Exception:
        if pending is None or pending.cancelled() or (pending.done() and pending.exception() is not None):
            await quotas.give_back("feedback", tenant=tenant)
        raise


def _refused(database: Database, item: Feedback, *, limit: VoteLimit) -> RagBanditError | None:
    with database.read() as connection:
        return refused_votes(connection, [item], limits={item.id: limit}).get(item.id)


async def _tenant_of(request: Request, token: FeedbackToken) -> str:
    """Whose quota a token's judgements take: that of its key's tenant, as feedback that comes with the key itself.

    A revoked key's tokens are worth nothing; those of one that was rotated are. Raises Unauthorized, NotReady.
    """
    if token.api_key is None:
        return "default"
    stored = (await request.app.state.gate.ring.in_force()).keys.get(token.api_key)
    if stored is None:
        raise Unauthorized("the key that this feedback token was made with is revoked", field="token")
    return stored.key.tenant or "default"


async def _secret(request: Request) -> bytes:
    """The secret that tokens are signed with; of the settings, else of the store, read once."""
    state, router = request.app.state, router_of(request)
    secret: bytes | None = getattr(state, "feedback_secret", None)
    if secret is None:
        given = router.settings.server.feedback_secret
        if given is not None:
            secret = given.encode()
        else:
            database = router.database
            secret = await reads_of(request).run(lambda: shared_secret(database, name="feedback", now=time.time()))
        state.feedback_secret = secret
    return secret


def _kinds(given: list[str] | None) -> tuple[TokenKind, ...]:
    if given is None:
        return TOKEN_KINDS
    if not given or any(kind not in TOKEN_KINDS for kind in given):
        remedy = f"name some of {', '.join(TOKEN_KINDS)}"
        raise InvalidInput("a token is for kinds of feedback", field="kinds", remedy=remedy)
    return tuple(kind for kind in TOKEN_KINDS if kind in given)


def _allowed(request: Request) -> dict[str, str]:
    """What lets a page of a site that is named read the reply; nothing for others."""
    origin = request.headers.get("origin")
    if origin is None or origin not in router_of(request).settings.server.feedback_origins:
        return {"Vary": "Origin"}
    return {"Vary": "Origin", "Access-Control-Allow-Origin": origin}
