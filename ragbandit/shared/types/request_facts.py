"""Facts about a request that are stored with its question, in `Query.request`. Every key is here, with its writer.

A key is absent if there is nothing to say. The stored JSON has the same names. A value from the store of another
release may be of another type, so readers that depend on a type check it.
"""

from collections.abc import Mapping
from typing import TypedDict, cast

from ragbandit.shared.types.names import Json


class RequestFacts(TypedDict, total=False):
    """Facts about a request that its question does not have."""

    # The door (router/api)
    surface: str
    """Interface: `openai`, `responses` or `anthropic`."""
    user: str
    """Id of the user who asks."""
    message: str
    """Id that the client gives the answer, by which a rating finds the decision."""
    metadata: Mapping[str, Json]
    """Pairs of `metadata`, except those that the setting `context` declares."""
    ignored: list[Json]
    """Names of parameters and parts that the arm did not get."""
    failover: Json
    """False if the caller wants no other arm; an object if the decision answers instead of a failed one."""
    named_id: bool
    """Whether the caller chose the id; absent if the service did."""
    request_id: Json
    """Header x-request-id."""
    traceparent: str
    tracestate: str
    prices: Mapping[str, Json]
    """Cost weights that key and tenant may choose."""
    budget_factor: float
    """Factor by which a nearly spent budget raises the cost weight."""

    # What the request needs (router/api/openai/chats.py)
    needs: list[Json]
    """Abilities that an arm must have."""
    optional_needs: list[Json]
    """Abilities that an arm should have, if any arm has them."""
    tokens: int
    """Estimated tokens of the prompt."""
    clipped: int
    """Number of messages whose text was shortened for the features."""
    effort_min: str | None
    effort_max: str | None
    """Lowest and highest reasoning effort that the caller allows."""

    # What the request continues (router/storage/decisions, the addition `responses`)
    chat_hash: str
    """Hash of the whole conversation and its parameters."""
    conversation_hash: str
    """Hash of the caller and of all messages."""
    tool_turn: Mapping[str, Json]
    """The loop of tools that this turn continues: `first`, `previous`, `turn`, `permitted`, `called_by`."""
    continues: str
    """The decision whose answer a chat without an id continues; absent if the same chat has continued it before."""
    agent: str
    """The agent of the conversation that asks, if it is not the main one; it has tasks of its own."""
    asked_model: str
    """The model that the client named, if it is not `auto`; requests of different models are different tasks."""
    previous_response_id: str
    """Id of the response that this one continues, as the caller sent it."""
    chain: list[Json]
    """Ids of the responses before this one, nearest first."""
    quoted: list[Json]
    """Ids that the responses of the items in the input may have."""
    said: Json
    """Messages of this response's own turn; their size if they are too large."""
    item_tools: Json
    """Tools that the items of a chain of responses have brought; their size if they are too large."""
    repeats_answer: bool
    """Whether the answer before, with its calls, is the first message of the turn."""
    sent: Mapping[str, Json]
    """Parameters that the response repeats."""
    namespaces: list[str]
    """Namespaces of the tools."""
    call_types: Mapping[str, Json]
    """Name of a tool -> type of the item of its call, for tools that the client runs under a type of their own; "" for
    a tool without a namespace whose name begins as one."""
    compacts: bool
    """Whether the answer is a summary, which later requests bring back in place of the conversation's turns."""
    instructions: bool
    """Whether the response has `instructions`."""
    store: bool
    """False if the response may not be read later."""

    # Made while the decision is made (router/serving)
    history: Json
    """Counts of the earlier messages that were left out or shortened."""
    rewrite: Json
    """How the question was rewritten."""
    pick: Json
    """The arm that a language model has picked."""


def facts_of(entries: Mapping[str, Json]) -> RequestFacts:
    """The entries that say something: neither null nor empty."""
    return cast(RequestFacts, {name: value for name, value in entries.items() if value not in (None, [], {})})
