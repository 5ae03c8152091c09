"""Protocol of OpenAI-compatible servers: requests built and replies read; no connection is made here."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ragbandit.shared.errors import ArmFailed, encodable
from ragbandit.shared.openai_client import BrokenReply, MessageParts, OpenAiOptions, Tokens, delta_of
from ragbandit.strategies.base import Prompt, Request
from ragbandit.strategies.generators.text_feed import TURN_TOKENS, Token, chat_turns, first_stop, plain_parts

#: stop strings that are sent: OpenAI takes no more. All of them are heeded here
_SENT_STOPS: Final = 4
#: a usual tokenizer's bytes of English text per token
_BYTES_PER_TOKEN: Final = 4
#: parts of a stream per token allowed for, before a server counts as one that ignores max_tokens
_RUNAWAY: Final = 4
#: characters per token allowed for, before it counts as one, too: the longest tokens in use are runs of so many spaces
_LONGEST_TOKEN: Final = 128
#: characters of an unexpected body that are shown
_BEGIN: Final = 80
_ADDRESS_REMEDY: Final = "check generator.openai.base_url: a gateway or another page may be in between"


def check_stream(content_type: str, *, begin: str) -> None:
    """Raises BrokenReply for the Content-Type of a reply that is no stream of events.

    begin: the first characters of its body. Types other than JSON and HTML pass: some servers give their streams odd
    ones.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json":
        raise BrokenReply(
            "expected an event stream, got application/json: the server does not stream",
            remedy="set generator.openai.stream: false",
        )
    if kind == "text/html":
        raise BrokenReply(f"expected an event stream, got text/html: {begin!r}", remedy=_ADDRESS_REMEDY)


def check_whole(reply: object) -> None:
    """Raises BrokenReply for a reply that the openai package gave back as text: it was no JSON."""
    if isinstance(reply, str):
        raise BrokenReply(f"expected JSON, got {reply[:_BEGIN]!r}", remedy=_ADDRESS_REMEDY)


def counted_tokens(prompt: Prompt, *, options: OpenAiOptions) -> int:
    """Tokens of the text and the template: an upper bound if template_tokens and bytes_per_token are."""
    size = sum(len(encodable(part).encode()) for part in plain_parts(prompt))
    template = options.template_tokens + TURN_TOKENS * len(prompt.history)
    return template + math.ceil(size / options.bytes_per_token)


def estimated_tokens(text: str) -> int:
    """Tokens of a text, about right for English: for servers that tell no usage."""
    return math.ceil(len(encodable(text).encode()) / _BYTES_PER_TOKEN)


@dataclass(kw_only=True, slots=True)
class Reading:
    """The reply to a request, as far as it has come."""

    request: Request
    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    #: the server's word for why it ended, or "stop" or "length" where we ended it
    finish: str | None = None
    #: by the server's count
    usage: Tokens | None = None
    #: whether it was asked for, when (time.monotonic()), and the seconds until the first part of a stream came
    asked: bool = False
    asked_at: float = field(default_factory=time.monotonic)
    first_s: float | None = None
    #: as the server calls it
    model: str | None = None
    #: enough was read: the rest of the stream is of no interest
    ended: bool = False
    parts: int = 0
    #: of a chat that is passed on: what its message has beside the text, and what of that came last
    message: MessageParts = field(default_factory=MessageParts)
    delta: Mapping[str, Any] = field(default_factory=dict)

    def take(self, part: Any) -> None:
        """Read a part of a stream, or a whole reply. Raises BrokenReply."""
        self.model = getattr(part, "model", None) or self.model
        usage = getattr(part, "usage", None)
        if usage is not None:
            self.usage = Tokens.of(usage)
        self.delta = {}
        for choice in part.choices[:1]:
            text = _text_of(choice)
            if not isinstance(text, str):
                raise BrokenReply(f"the text is {text!r}")
            self.text = _joined(self.text, text)
            self.parts += bool(text)
            if self.request.chat is not None:
                self.delta = delta_of(choice.model_dump(exclude_unset=True))
                self.message.add(self.delta)
            self.tokens += _tokens_of(getattr(choice, "logprobs", None))
            self.finish = choice.finish_reason or self.finish
            self._end_early()

    def check(self) -> None:
        """Raises BrokenReply if the end is missing, ArmFailed if the server kept back what was asked for."""
        if self.finish is None:
            raise BrokenReply(
                "the reply broke off before its end" if self.text else "the reply has no choices: no answer is in it"
            )
        if self.finish == "content_filter" and self.request.chat is None:
            raise ArmFailed("the server's content filter held the answer back")
        if "logprobs" in self.request.want and not self.tokens and self.text:
            raise ArmFailed(
                "the server sent no log-probabilities", field="generator.openai.logprobs", remedy="set it to false"
            )

    def text_without(self, *, prefix: bool) -> str:
        """The text so far; prefix: without the prompt's, and none of it before it is known which one it is."""
        wanted = self.request.prompt.prefix.strip() if prefix else ""
        begin = self.text.lstrip()
        if not wanted or not wanted.startswith(begin[: len(wanted)]):
            return self.text
        return begin[len(wanted) :]

    def drop_prefix(self) -> None:
        """Take the prompt's prefix off an answer that repeats it, and off its tokens."""
        prefix = self.request.prompt.prefix.strip()
        if not prefix or not self.text.lstrip().startswith(prefix):
            return
        dropped = self.text.index(prefix) + len(prefix)
        self.text = self.text[dropped:]
        while self.tokens and dropped >= len(self.tokens[0].text):
            dropped -= len(self.tokens.pop(0).text)
        if self.tokens and dropped:
            first = self.tokens[0]
            self.tokens[0] = Token(text=first.text[dropped:], logprob=first.logprob)

    def _end_early(self) -> None:
        """Heed the stop strings and the length ourselves: a server may not."""
        if (end := first_stop(self.text, self.request.stop)) is not None:
            self.text, self.finish, self.ended = self.text[:end], "stop", True
        elif self.parts > _RUNAWAY * (self.request.max_tokens + 4):
            self.finish, self.ended = "length", True
        elif len(self.text) > _LONGEST_TOKEN * self.request.max_tokens:
            self.text = self.text[: _LONGEST_TOKEN * self.request.max_tokens]
            self.finish, self.ended = "length", True


def request_fields(request: Request, *, model: str, options: OpenAiOptions) -> dict[str, Any]:
    """The arguments of the openai package's `create`."""
    fields: dict[str, Any] = {"model": model, options.max_tokens_field: request.max_tokens, "stream": options.stream}
    if request.chat is not None:
        return _chat_fields(request.chat, options=options, fields=fields)
    fields["messages"] = _messages(request.prompt, where=options.prefix)
    extra: dict[str, Any] = {}
    if options.stream:
        fields["stream_options"] = {"include_usage": True}
    if options.prefix == "continue" and request.prompt.prefix:
        extra = {"add_generation_prompt": False, "continue_final_message": True}
    if stop := [each for each in request.stop if each][:_SENT_STOPS]:
        fields["stop"] = stop
    if "logprobs" in request.want:
        fields["logprobs"] = True
    fields["temperature"], seed = 0.0, options.seed
    if request.sampling is not None:
        fields |= {"temperature": request.sampling.temperature, "top_p": request.sampling.top_p}
        seed = request.sampling.seed
        extra |= {"top_k": request.sampling.top_k} if request.sampling.top_k else {}
    if seed is not None:
        fields["seed"] = seed
    removed = {name for name, value in options.fields.items() if value is None}
    extra |= {name: value for name, value in options.fields.items() if value is not None}
    named = {name: value for name, value in fields.items() if name not in removed and name not in extra}
    # What the package has no argument for goes through extra_body, and so may what it has one for.
    return named | ({"extra_body": extra} if extra else {})


def _chat_fields(sent: Mapping[str, Any], *, options: OpenAiOptions, fields: dict[str, Any]) -> dict[str, Any]:
    """A chat completion as its caller sent it; the settings' own `fields` come last, as always."""
    del fields[options.max_tokens_field]
    limits = [sent[name] for name in ("max_tokens", "max_completion_tokens") if sent.get(name) is not None]
    body = {name: value for name, value in sent.items() if name not in ("max_tokens", "max_completion_tokens")}
    body |= {options.max_tokens_field: limits[0]} if limits else {}
    removed = {name for name, value in options.fields.items() if value is None}
    body |= {name: value for name, value in options.fields.items() if value is not None}
    fields |= {"stream_options": {"include_usage": True}} if options.stream else {}
    fields["messages"] = body.pop("messages")
    # The package looks at nothing in here, so that what it has no argument for, and any type, goes through.
    return fields | {"extra_body": {name: value for name, value in body.items() if name not in removed}}


def _messages(prompt: Prompt, *, where: str) -> list[dict[str, str]]:
    *before, (_, body) = [(role, encodable(text)) for role, text in chat_turns(prompt)]
    prefix = encodable(prompt.prefix)
    if prefix and where == "user":
        body = f"{body}\n\nYour answer begins with the words below. Go on from there, without repeating them.\n{prefix}"
    turns = [*before, ("user", body)]
    if prefix and where != "user":
        turns.append(("assistant", prefix))
    return [{"role": role, "content": text} for role, text in turns if text]


def _joined(text: str, piece: str) -> str:
    """The text and its next piece; a character that a server has cut into the halves of a surrogate pair is whole."""
    if text and piece and "\ud800" <= text[-1] <= "\udbff" and "\udc00" <= piece[0] <= "\udfff":
        pair = (text[-1] + piece[0]).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        return f"{text[:-1]}{pair}{piece[1:]}"
    return text + piece


def _text_of(choice: Any) -> Any:
    """The text in a choice of a stream's part or of a whole reply."""
    message = choice.delta if hasattr(choice, "delta") else choice.message
    return "" if message is None else message.content or ""


def _tokens_of(logprobs: Any) -> list[Token]:
    """The log-probabilities of a choice."""
    told = getattr(logprobs, "content", None) or ()
    return [Token(text=each.token, logprob=min(0.0, each.logprob)) for each in told]
