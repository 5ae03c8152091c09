from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from ragbandit.additions.anthropic.fitting.messages import fit_before_messages, fit_messages
from ragbandit.additions.anthropic.messages.replies import ChatChunks
from ragbandit.additions.anthropic.messages.requests import CONVERTED, DIALECT, messages_of
from ragbandit.additions.anthropic.messages.thoughts import is_signed
from ragbandit.additions.anthropic.repairs import thinking_by_effort
from ragbandit.additions.anthropic.settings import AnthropicOptions
from ragbandit.shared.dialects.thoughts import without_thoughts
from ragbandit.shared.model_servers import Kind
from ragbandit.shared.model_servers.fitting.fitted import RequestChanges, UnchangedTools
from ragbandit.shared.model_servers.openai_client import ModelServer, reply_pieces
from ragbandit.shared.model_servers.openai_options import base_url_of
from ragbandit.shared.reading.fields import object_in
from ragbandit.shared.types import Conversation
from ragbandit.strategies.base import Request
from ragbandit.strategies.generators.chat_generator import ChatGenerator, chat_body, not_passed, passed_conversation
from ragbandit.strategies.generators.openai_generator import PromptCall, prompt_body, with_options
from ragbandit.strategies.generators.partial_reply import Piece
from ragbandit.workers.setup.generator_kinds import ServerKind

_URL: Final = "https://api.anthropic.com"
_HEADERS: Final = {"anthropic-version": "2023-06-01", "accept-encoding": "identity"}


class AnthropicGenerator(ChatGenerator):
    """Calls a model behind Anthropic's Messages; only the form of requests and replies differs from ChatGenerator.

    A request that came in this form is not converted: it is sent with the client's headers for versions and betas, but
    without thoughts that no model of Anthropic has signed.
    """

    provider = AnthropicOptions.provider
    options_type = AnthropicOptions
    repairs = (thinking_by_effort,)
    _options: AnthropicOptions

    def _kind_of(self, address: str) -> Kind:  # noqa: ARG002 - every such server takes the same
        return "anthropic"

    def prompt_fields(self, request: Request, *, streams: bool) -> dict[str, Any]:
        """The fields of the request to the server for a prompt."""
        body, fitted = self._convert_chat(prompt_body(request, options=self._options), streams=streams)
        return self._fit_and_add_options(body, streams=streams, fitted=fitted)

    def chat_fields(
        self, request: Request, *, sent: Conversation, streams: bool
    ) -> tuple[dict[str, Any], list[str], RequestChanges]:
        """Returns (fields for the server, fields of the conversation that they lack, changes to fit the server)."""
        options, fitted = self._options, RequestChanges(same=UnchangedTools(sent.encoding, self._known_tools))
        ignored = not_passed(sent, options=options)
        if sent.dialect == DIALECT:
            kept = passed_conversation(sent, ignored=ignored, effort=request.effort)
            body = {"max_tokens": options.max_tokens, **without_thoughts(kept.fields, keeps=is_signed)}
            if "reasoning_effort" in body:  # set by an arm
                config = {"effort": body.pop("reasoning_effort"), **object_in(body, "output_config")}
                body = {"thinking": {"type": "adaptive"}, **body, "output_config": config}
        else:
            read = {*CONVERTED, *ignored}
            ignored += [name for name in sent.fields if name not in read]
            # Messages can ask for JSON only with a schema.
            if object_in(sent.fields, "response_format").get("type") == "json_object":
                ignored.append("response_format")
            more: Any = {"is_limit_named": request.is_limit_named, "effort": request.effort}
            chat = chat_body(sent, options=options, **more)
            body, fitted = self._convert_chat(chat, streams=streams)
        return self._fit_and_add_options(body, streams=streams, fitted=fitted), ignored, fitted

    def pieces(self, fields: Mapping[str, Any], *, call: PromptCall) -> AsyncIterator[list[Piece]]:
        """Send a request, read its reply, and yield the pieces that arrived together."""
        reply, headers = call.reply, call.client_headers(DIALECT)
        convert = ChatChunks(reply.counts).of
        return reply_pieces(
            self._connection(), fields, reply=reply, headers=headers, write=call.body_bytes, convert=convert
        )

    def _convert_chat(self, chat: Mapping[str, Any], *, streams: bool) -> tuple[dict[str, Any], RequestChanges]:
        """Convert a chat completion to a request for Messages. Returns (request, changes that fitted it)."""
        fields, fitted = fit_before_messages(chat, server=self.takes)
        fields = with_options(fields, streams=streams, model=self.name, options=self._options)
        return messages_of(fields, max_tokens=self._options.max_tokens), fitted

    def _fit_and_add_options(self, body: Mapping[str, Any], *, streams: bool, fitted: RequestChanges) -> dict[str, Any]:
        """Fit the request to the server, and set the fields of the options."""
        own = self._options.fields
        whole = fit_messages(body, model=self.name, server=self.takes, changes=fitted)
        whole |= {"model": self.name, "stream": streams, **own}
        removed = {name for name, value in own.items() if value is None}
        return {name: value for name, value in whole.items() if name not in removed}

    def _connection(self) -> ModelServer:
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


class AnthropicKind(ServerKind):
    """The generator "anthropic" before it is loaded."""

    generator = AnthropicGenerator
