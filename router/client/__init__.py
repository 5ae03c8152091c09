"""HTTP clients of a running service: `Client`, and `AsyncClient` for asyncio. They need httpx and nothing heavy.

    with Client("http://127.0.0.1:8100") as client:
        reply = client.route("Who wrote Dracula?")
        client.outcome(reply["decision_id"], answer="Bram Stoker", steps=1)
        client.feedback(reply["decision_id"], rating=True)

What is sent, retried, read and refused is written once, without input and output, in `calls` and `exchange`; the two
classes only send, wait and run what those ask for.
"""

from ragbandit.router.client.arms import ArmRun, Arms, AsyncArms
from ragbandit.router.client.async_client import AsyncClient
from ragbandit.router.client.calls import is_degraded
from ragbandit.router.client.client import Client
from ragbandit.router.client.replies import ClientFeedbackReply, ClientOutcomeReply, ClientRouteReply
from ragbandit.router.client.streams import StreamEvent

__all__ = [
    "ArmRun",
    "Arms",
    "AsyncArms",
    "AsyncClient",
    "Client",
    "ClientFeedbackReply",
    "ClientOutcomeReply",
    "ClientRouteReply",
    "StreamEvent",
    "is_degraded",
]
