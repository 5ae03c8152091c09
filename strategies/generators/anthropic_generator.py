from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

from ragbandit.shared.dialects.messages.replies import ChatChunks
from ragbandit.shared.dialects.messages.requests import CONVERTED, DIALECT, messages_of
from ragbandit.shared.dialects.thoughts import without_thoughts
from ragbandit.shared.model_servers.fitting.chats import fit_before_messages
from ragbandit.shared.model_servers.fitting.fitted import Fitted
from ragbandit.shared.model_servers.fitting.kinds import Kind
from ragbandit.shared.model_servers.fitting.messages import fit_messages
from ragbandit.shared.model_servers.openai_client import ModelServer, reply_pieces
from ragbandit.shared.model_servers.openai_options import AnthropicOptions, base_url_of
from ragbandit.shared.reading.fields import object_in
from ragbandit.strategies.base import Request
from ragbandit.strategies.generators.openai_generator import (
    OpenAiGenerator,
    PartialReply,
    Piece,
    is_streamed,
    not_passed,
    request_body,
    sent_by_client,
    with_options,
)

_URL: Final = "https://api.anthropic.com"
_HEADERS: Final = {"anthropic-version": "2023-06-01", "accept-encoding": "identity"}


class AnthropicGenerator(OpenAiGenerator):
    """Calls a model behind Anthropic's Messages; only the form of requests and replies differs from OpenAiGenerator.

    A request that came in this form is sent as it came, with the client's headers for versions and betas, but without
    thoughts that no model of Anthropic has signed.
    """

    provider = AnthropicOptions.provider
    options_type = AnthropicOptions
    _options: AnthropicOptions

    def _kind_of(self, address: str) -> Kind:  # noqa: ARG002 - every such server takes the same
        return "anthropic"

    def _fields(self, request: Request) -> tuple[dict[str, Any], list[str], Fitted]:
        client, options, fitted = sent_by_client(request), self._options, Fitted()
        ignored = not_passed(client, options=options)
        if client.dialect == DIALECT:
            left_out = {*ignored}
            sent = {name: value for name, value in client.fields.items() if name not in left_out}
            body = {"max_tokens": options.max_tokens, **without_thoughts(sent, keep_signed=True)}
            if "reasoning_effort" in body:  # the effort of an arm
                config = {"effort": body.pop("reasoning_effort"), **object_in(body, "output_config")}
                body = {"thinking": {"type": "adaptive"}, **body, "output_config": config}
        else:
            read = {*CONVERTED, *ignored}
            ignored += [name for name in client.fields if name not in read]
            if object_in(client.fields, "response_format").get("type") == "json_object":  # Messages have only schemas
                ignored.append("response_format")
            fields, fitted = fit_before_messages(request_body(request, options=options), takes=self._takes)
            fields = with_options(fields, request=request, model=self.name, options=options)
            body = messages_of(fields, max_tokens=options.max_tokens)
        body = fit_messages(body, takes=self._takes, fitted=fitted)
        body |= {"model": self.name, "stream": is_streamed(request, options=options), **options.fields}
        removed = {name for name, value in options.fields.items() if value is None}
        return {name: value for name, value in body.items() if name not in removed}, ignored, fitted

    def _pieces(self, fields: Mapping[str, Any], *, reply: PartialReply) -> AsyncIterator[list[Piece]]:
        client = sent_by_client(reply.request)
        headers = client.headers if client.dialect == DIALECT else {}
        chunks = ChatChunks(reply.budget)

        def read(value: Any) -> Iterator[Piece]:
            for chunk in chunks.of(value):
                yield from reply.read(chunk)

        return reply_pieces(self._connected(), fields, read=read, budget=reply.budget, headers=headers)

    def _connected(self) -> ModelServer:
        if self._server is None:
            options = self._options
            base, mark, query = (base_url_of(options) or _URL).partition("?")
            base = base.rstrip("/").removesuffix("/v1")
            headers = {
                "x-api-key": self._key or "none",
                "content-type": "application/json",
                **_HEADERS,
                **options.headers,
            }
            times = {"connect_s": min(5.0, options.read_s), "read_s": options.read_s}
            self._server = ModelServer(f"{base}/v1/messages{mark}{query}", headers=headers, **times)
        return self._server
