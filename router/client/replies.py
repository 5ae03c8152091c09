"""Replies as a client gives them: those of the service, marked where there was no service to ask."""

from ragbandit.router.api.schemas.reply_types import OutcomeReply, ReceiptReply, RouteReply

__all__ = ["ClientFeedbackReply", "ClientOutcomeReply", "ClientRouteReply"]


class ClientRouteReply(RouteReply, total=False):
    """A decision. degraded: the service was away, the arm is the client's `default_arm`, and nothing is stored."""

    degraded: bool


class ClientOutcomeReply(OutcomeReply, total=False):
    """Receipt of an outcome. degraded: its decision was, and nothing was sent."""

    degraded: bool


class ClientFeedbackReply(ReceiptReply, total=False):
    """Receipt of a feedback. degraded: its decision was, and nothing was sent."""

    degraded: bool
