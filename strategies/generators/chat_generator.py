"""Passes clients' conversations on to a model server."""

import time
from collections.abc import Collection, Mapping
from itertools import count
from typing import Any, Final

from ragbandit.shared.dialects.registry import (
    as_chat,
    conversation_parameters,
    token_limits,
    unread_parameters,
    with_token_limit,
)
from ragbandit.shared.dialects.thoughts import without_refused_thoughts
from ragbandit.shared.model_servers.absent_models import ABSENT, has_absent_model_code, names_stored_object
from ragbandit.shared.model_servers.efforts import Effort, sent_effort
from ragbandit.shared.model_servers.error_replies import failure_of_error
from ragbandit.shared.model_servers.failures import Failure
from ragbandit.shared.model_servers.field_paths import without_places
from ragbandit.shared.model_servers.fitting.chats import fit_chat, fitting_size
from ragbandit.shared.model_servers.fitting.fitted import RequestChanges, UnchangedTools
from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.shared.model_servers.token_usage import TOKEN_LIMITS
from ragbandit.shared.reading.thread import LARGE, READING
from ragbandit.shared.types import Conversation
from ragbandit.strategies.base import Need, Request, seconds_until
from ragbandit.strategies.generators.openai_generator import OpenAiGenerator, PromptCall, with_options
from ragbandit.strategies.generators.partial_reply import PartialReply
from ragbandit.strategies.generators.refused_fields import REFUSED, Caller

_NUMBERS: Final = count()


class ChatGenerator(OpenAiGenerator):
    """An OpenAiGenerator that also passes on conversations: fits them to the server, and undoes this in the answer."""

    capabilities: frozenset[Need] = OpenAiGenerator.capabilities | frozenset[Need]({"chat"})

    def __init__(self, model: str, *, options: OpenAiOptions | None = None, context_tokens: int | None = None) -> None:
        super().__init__(model, options=options, context_tokens=context_tokens)
        self.number = next(_NUMBERS)  #: number of this generator, unique in this process
        self._known_tools = UnchangedTools().known

    @classmethod
    def offered_by(cls, options: OpenAiOptions) -> frozenset[Need]:
        """The capabilities of a generator with these options."""
        return super().offered_by(options) - frozenset[Need]({"chat"} if options.api == "completions" else ())

    def chat_fields(
        self, request: Request, *, sent: Conversation, streams: bool
    ) -> tuple[dict[str, Any], list[str], RequestChanges]:
        """Returns (fields of the request to the server for a conversation, fields of the conversation that the request
        lacks, changes made to fit the server).
        """
        options, fitted = self._options, RequestChanges()
        body = chat_body(sent, options=options, is_limit_named=request.is_limit_named, effort=request.effort)
        if options.api == "chat":
            body, fitted = fit_chat(body, server=self.takes, same=UnchangedTools(sent.encoding, self._known_tools))
        fields = with_options(body, streams=streams, model=self.name, options=options)
        return fields, _ignored(sent, options=options), fitted

    def _call_of(self, request: Request) -> PromptCall:
        if request.conversation is None:
            return super()._call_of(request)
        return ChatCall(request, conversation=request.conversation, generator=self, options=self._options)


class ChatCall(PromptCall):
    """A call that passes a conversation on: its changed and omitted fields, and the answer in the client's form."""

    _generator: ChatGenerator

    def __init__(
        self, request: Request, *, conversation: Conversation, generator: ChatGenerator, options: OpenAiOptions
    ) -> None:
        self.conversation = conversation
        super().__init__(request, generator=generator, options=options)
        self.headers = conversation.headers
        self._ignored = list[str]()  #: fields of the conversation that the server did not get
        self._is_bare = False  #: whether the thoughts of earlier turns were left out
        self._fitted = RequestChanges()

    @property
    def is_streamed(self) -> bool:
        """Whether the server is asked for a stream. By default there is no stream only if nobody reads it, no other arm
        can answer, and the time left until the deadline is at most `read_s`.
        """
        request, stream = self.request, self._options.stream
        left_s = seconds_until(request.deadline)
        is_short = left_s is not None and left_s <= self._options.read_s
        is_unread = request.sink is None and not request.has_successor
        return super().is_streamed and (isinstance(stream, bool) or not (is_unread and is_short))

    async def fields(self) -> dict[str, Any]:
        """The fields of the request, composed in the reading thread if the conversation is large."""
        size = fitting_size(self.conversation.fields)
        if size < LARGE:
            fields, self._ignored, self._fitted = self._fields()
        else:
            fields, self._ignored, self._fitted = await READING.read(size, self._fields)
        return fields

    def body_bytes(self, fields: Mapping[str, Any]) -> bytes:
        """The body of the request. Parts that came from the client are not encoded again."""
        return self.conversation.encoding.body(fields)

    def without_refused(self, fields: Mapping[str, Any], *, error: Exception) -> dict[str, Any] | None:
        """The request without the refused fields, for another attempt; None if the error is final."""
        fewer = super().without_refused(fields, error=error)
        if fewer is not None or self._is_bare:
            return fewer
        bare = without_refused_thoughts(fields, error=error)
        if bare is not None:  # most often because another model wrote the thoughts
            self._generator.log_refusal("thoughts", action="is asked without the thoughts of earlier turns")
            self._is_bare = True
        return bare

    def client_headers(self, dialect: str) -> Mapping[str, str]:
        """The client's headers, if the server has the dialect of the client's request; otherwise none."""
        return self.headers if self.conversation.dialect == dialect else {}

    def delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        """A delta of the reply as the client gets it."""
        return self._fitted.delta(delta)

    def details(self) -> dict[str, Any]:
        """`Completion.details`: the reply in the form of chat completions, and the fields left out."""
        reply = self.reply
        ignored = [
            *self._ignored,
            *(fewer.field for fewer in self.repeats),
            *sorted(self._fitted.changed),
            *["thoughts"] * self._is_bare,
        ]
        names = {"omitted": sorted(reply.omitted), "ignored": ignored}
        more = {name: value for name, value in {**reply.more, **names}.items() if value}
        message = self._fitted.message(reply.message.whole)
        return {"reply": {"message": message, "finish_reason": reply.finish, **more}}

    def failure_of(self, error: Exception) -> tuple[Failure, bool]:
        """Returns (failure, whether the conversation is at fault, and not the server)."""
        failure, body = failure_of_error(error), getattr(error, "body", None)
        if not names_stored_object(self.conversation.fields):
            failure, _ = super().failure_of(error)
        elif failure.status in ABSENT:  # another arm's server may have the named object: the kind stays "denied"
            return failure, not has_absent_model_code(failure, body=body)
        return failure, failure.kind == "refused" and failure.status not in ABSENT

    def _fields(self) -> tuple[dict[str, Any], list[str], RequestChanges]:
        composed = self._generator.chat_fields(self.request, sent=self.conversation, streams=self.is_streamed)
        refused = REFUSED.of(self._caller, now=time.monotonic())
        fields, places = without_places(composed[0], refused)
        return fields, [*composed[1], *map(".".join, places)], composed[2]

    @property
    def _caller(self) -> Caller:
        return self._generator.number, self.request.api_key

    def _empty_reply(self) -> PartialReply:
        uses_functions = "functions" in self.conversation.fields
        return ChatReply(self.request, max_media=self._options.media_chars, uses_functions=uses_functions)

    def note_answer(self) -> None:
        """Remember the fields that this request had to leave out."""
        for fewer in self.repeats:
            REFUSED.note(self._caller, fewer.lasting, now=time.monotonic())


class ChatReply(PartialReply):
    """The reply to a conversation so far. A first piece that has only the role is not part of the answer."""

    @property
    def has_begun(self) -> bool:  # type: ignore[override] # a chat's depends on its text
        """Whether a piece of the answer has arrived."""
        return bool(self.text_size or self.message.has_fields or self.finish)

    def check(self) -> None:
        """Does nothing: a blocked answer is passed on unchanged."""


def chat_body(
    sent: Conversation, *, options: OpenAiOptions, is_limit_named: bool = True, effort: Effort | None = None
) -> dict[str, Any]:
    """The body of a chat completion for a conversation, without the fields that the options add. is_limit_named,
    effort: see `Request`.
    """
    body = as_chat(passed_conversation(sent, ignored=_ignored(sent, options=options), effort=effort))
    if not (is_limit_named and sent.dialect == "chat") and "max_tokens" in body:
        body[options.max_tokens_field] = body.pop("max_tokens")
    return body


def passed_conversation(sent: Conversation, *, ignored: Collection[str], effort: Effort | None) -> Conversation:
    """The conversation without the ignored fields. Its limits of tokens stay, and it gets the arm's own effort if it
    then asks for none.
    """
    kept = sent
    if ignored:
        kept = sent.having({name: value for name, value in sent.fields.items() if name not in ignored})
        for place, limit in token_limits(sent).items() - token_limits(kept).items():
            kept = with_token_limit(kept, limit, at=[place])
    if effort is not None and sent_effort(kept.fields) is None:
        kept = kept.having({**kept.fields, "reasoning_effort": effort})
    return kept


def not_passed(sent: Conversation, *, options: OpenAiOptions) -> list[str]:
    """Fields of a conversation that the setting `passed` leaves out, or of which only a limit of tokens is passed."""
    if options.passed is None:
        return []
    passed = {*conversation_parameters(sent), *TOKEN_LIMITS, *token_limits(sent), *options.passed}
    return [name for name in sent.fields if name not in passed]


def _ignored(sent: Conversation, *, options: OpenAiOptions) -> list[str]:
    """The fields of a conversation that a chat completion cannot have, or that the setting `passed` leaves out."""
    unread = unread_parameters(sent)
    return unread + [name for name in not_passed(sent, options=options) if name not in unread]
