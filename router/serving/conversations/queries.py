"""Queries of conversations: a router's way from a list of chat messages to the question that it decides on."""

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

from ragbandit.router.config.settings import Settings
from ragbandit.router.serving.conversations.questions import Chat, chat_of, with_chat
from ragbandit.router.serving.conversations.rewriting import Rewrite, Rewriter, rewriter_of
from ragbandit.router.storage.access.spending import book, spenders_of
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.shared.errors import StoreError
from ragbandit.shared.openai_client import event_loop
from ragbandit.shared.types import Decision, DecisionId, Message, Query

log = logging.getLogger("ragbandit.conversations")


class ConversationQueries:
    """Makes queries of chats; safe to use from several threads."""

    def __init__(self, settings: Settings, *, store: DecisionStore) -> None:
        self.settings = settings.conversation
        #: None: questions are used as users write them
        self.rewriter: Rewriter | None = rewriter_of(settings.conversation.rewrite, generator=settings.generator)
        self._store = store

    def submit(self, messages: Sequence[Message], *, query: Query) -> "Future[Query]":
        """The query with the question of these messages, and what is kept of the others.

        A request that has come before, by its id, gets the rewrite of then: its decision stands. The Future raises
        nothing, and comes within `conversation.rewrite.seconds`. Raises InvalidInput.
        """
        chat = chat_of(messages, settings=self.settings)
        if self.rewriter is not None and chat.has_turns:
            rewritten = self._rewritten(query, chat=chat, rewriter=self.rewriter)
            return asyncio.run_coroutine_threadsafe(rewritten, event_loop())
        as_it_is: Future[Query] = Future()
        as_it_is.set_result(with_chat(query, chat=chat))
        return as_it_is

    async def _rewritten(self, query: Query, *, chat: Chat, rewriter: Rewriter) -> Query:
        known = None
        if query.id is not None and self._store.text == "full":  # else the store has no texts
            known = partial(self._decided_text, DecisionId(query.id))
        rewrite = await rewriter.rewrite(chat.history, question=chat.question, known=known)
        await self._book(query, rewrite)
        return with_chat(query, chat=chat, text=rewrite.text, facts=dict(rewrite.facts))

    async def _book(self, query: Query, rewrite: Rewrite) -> None:
        """Count what a rewrite cost, whatever becomes of its question."""
        dollars = rewrite.facts.get("dollars")
        if isinstance(dollars, float):
            spenders = spenders_of(query.tenant, key=query.api_key)
            try:
                await asyncio.to_thread(book, self._store.database, spenders, dollars=dollars, now=time.time())
            except StoreError as error:
                facts = {"action": "rewrite", "dollars": dollars, "reason": str(error)}
                log.warning("what a rewrite cost is not counted in the budgets", extra=facts)

    def _decided_text(self, decision_id: DecisionId) -> str | None:
        """The text that was decided on; None where there is no such decision, or its texts were erased."""
        decision, _ = self._store.decisions_by_id([decision_id]).get(decision_id, (None, ""))
        return decision.query.text or None if isinstance(decision, Decision) else None
