"""The features of requests that each kind of model server accepts. The kind is recognised by the server's address."""

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from ragbandit.shared.model_servers import Kind

#: field that marks the end of a part of the prompt that the provider should cache
MARK: Final = "cache_control"


@dataclass(frozen=True, slots=True)
class IdForm:
    """The form of ids or names. characters: a class of regular expressions; "" for any characters."""

    characters: str = ""
    _: KW_ONLY
    least: int = 1
    most: int = 64
    #: class of the first character; "" if it is the class of all characters
    first: str = ""

    def fits(self, text: str) -> bool:
        """Whether a text has this form."""
        return self.least <= len(text) <= self.most and bool(
            _whole_text_pattern(self.first, self.characters).match(text)
        )

    def text_in_form(self, text: str, *, number: int = 0) -> str:
        """A text of this form in place of `text`: equal for equal text and number, practically never otherwise."""
        digest = hashlib.sha256(f"{number} {text}".encode("utf-8", "replace")).hexdigest()
        if self.least == self.most:
            return digest[: self.most]
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", text)[: self.most - 9]
        begin = "" if not self.first or re.match(f"[{self.first}]", plain) else "t"
        return f"{begin}{plain}"[: self.most - 9] + f"_{digest[:8]}"


@functools.cache
def _whole_text_pattern(first: str, characters: str) -> re.Pattern[str]:
    """The pattern of a whole id or name. first, characters: see `IdForm`."""
    return re.compile((f"(?=[{first}])" if first else "") + (rf"[{characters}]*+\Z" if characters else ""))


_PLAIN: Final = "A-Za-z0-9_-"
_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
#: keywords of JSON Schema that structured outputs of Anthropic refuse
_LIMITS: Final = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "maxItems"}
    | {"minItems", "uniqueItems", "minProperties", "maxProperties", "patternProperties", "propertyNames"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerFeatures:
    """Features of a request that a server accepts. By default everything that chat completions allow."""

    #: whether the role `developer` is known; otherwise it is changed to `system`
    developer: bool = True
    #: where system messages may stand. "first": one message, at the beginning. "nowhere": in the first user's message
    system: Literal["anywhere", "first", "nowhere"] = "anywhere"
    #: whether a chat may be without a user's message
    without_user: bool = True
    #: whether the first message after the system's must be a user's
    user_first: bool = False
    #: whether messages of user and assistant must alternate
    alternates: bool = False
    #: whether a user's message may follow the results of tools
    user_after_result: bool = True
    #: field that must mark a last message of the assistant as the beginning of the answer; None if no field must
    prefix_mark: str | None = None
    #: the only fields that a message may have; None for any fields
    message_fields: frozenset[str] | None = None
    call_id: IdForm = IdForm(most=1000)
    #: whether all calls of a conversation need ids of their own
    unique_ids: bool = False
    tool_name: IdForm = IdForm(_PLAIN)
    #: whether the arguments of a call must be a JSON object
    json_arguments: bool = True
    #: names of models that take tools of free text (`custom`); None if no model does
    free_text: re.Pattern[str] | None = None
    #: whether tools must be declared if the conversation has calls
    declared_tools: bool = False
    #: schemas of functions. "any": all. "valid": without null values, an object at the top. "complete": objects have
    #: `properties`, and lists `items`. "nonempty": as "complete", and a function without properties has no schema
    schemas: Literal["any", "valid", "complete", "nonempty"] = "complete"
    #: keywords that strict schemas may not have
    closed_words: frozenset[str] = frozenset()
    #: whether texts may be blank
    blank: bool = True
    #: whether a last message of the assistant may end with white space
    blank_end: bool = True
    #: types of images; None for all types
    images: frozenset[str] | None = None
    #: whether the results of tools may only be texts
    text_results: bool = False
    #: whether cache marks (`cache_control`) are accepted
    cache_marks: bool = True
    #: parameters that are refused
    refused: frozenset[str] = frozenset()
    #: parameter -> its name at this server
    renamed: Mapping[str, str] | None = None
    #: parameters that are refused if the model thinks
    refused_thinking: frozenset[str] = frozenset()
    #: whether the model thinks if no effort is asked for
    thinks: bool = False
    #: whether names of tools must be unique
    unique_tools: bool = False
    #: maximum number of stop strings; None for any number
    most_stops: int | None = None
    #: whether `response_format` may be a schema
    json_schema: bool = True


#: parameters that servers with a chat template know, and vendors do not
_VLLM_PARAMETERS: Final = frozenset({"top_k", "min_p", "repetition_penalty"})
_OPENAI: Final = ServerFeatures(
    call_id=IdForm(most=40),
    json_arguments=False,
    free_text=re.compile(r"(^|/)gpt-([5-9]|[1-9]\d)"),
    text_results=True,
    cache_marks=False,
    refused=_VLLM_PARAMETERS,
    most_stops=4,
)
_TEMPLATE: Final = ServerFeatures(developer=False, system="first", call_id=IdForm(most=40))
_MISTRAL: Final = replace(
    _TEMPLATE,
    without_user=False,
    user_first=True,
    user_after_result=False,
    call_id=IdForm("A-Za-z0-9", least=9, most=9),
)
#: parameters that only OpenAI knows and on which no answer depends
_OPENAI_PARAMETERS: Final = frozenset(
    {"prompt_cache_key", "prompt_cache_retention", "safety_identifier", "store", "service_tier", "verbosity"}
    | {"logit_bias"}
)

#: kind of server -> features that it accepts
TABLE: Final[Mapping[Kind, ServerFeatures]] = {
    "openai": _OPENAI,
    "anthropic": ServerFeatures(
        call_id=IdForm(_PLAIN),
        unique_ids=True,
        unique_tools=True,
        tool_name=IdForm(_PLAIN, most=128),
        without_user=False,
        schemas="valid",
        closed_words=_LIMITS,
        blank=False,
        blank_end=False,
        images=_IMAGES,
    ),
    "mistral": replace(
        _MISTRAL,
        prefix_mark="prefix",
        message_fields=frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "prefix"}),
        cache_marks=False,
        refused=_OPENAI_PARAMETERS | _VLLM_PARAMETERS | {"user"},
        renamed={"seed": "random_seed", "max_completion_tokens": "max_tokens"},
    ),
    "deepseek": ServerFeatures(
        developer=False,
        call_id=IdForm(most=1000),
        unique_tools=True,
        cache_marks=False,
        refused=_OPENAI_PARAMETERS - {"logit_bias"},
        most_stops=16,
        renamed={"max_completion_tokens": "max_tokens"},
        json_schema=False,
    ),
    "gemini": replace(
        _TEMPLATE,
        without_user=False,
        user_first=True,
        tool_name=IdForm(_PLAIN, first="A-Za-z_"),
        unique_tools=True,
        schemas="nonempty",
        blank=False,
        images=_IMAGES - {"image/gif"} | {"image/heic", "image/heif"},
        text_results=True,
        cache_marks=False,
        refused=_OPENAI_PARAMETERS | _VLLM_PARAMETERS | {"user", "metadata"},
        most_stops=5,
    ),
    "bedrock": replace(
        _TEMPLATE,
        without_user=False,
        user_first=True,
        alternates=True,
        call_id=IdForm(_PLAIN),
        unique_tools=True,
        declared_tools=True,
        blank=False,
        blank_end=False,
        images=_IMAGES,
        cache_marks=False,
        refused=_OPENAI_PARAMETERS - {"service_tier"} | _VLLM_PARAMETERS | {"user", "metadata"},
    ),
    "template": _TEMPLATE,
    "unknown": _TEMPLATE,
}

_SAMPLING: Final = frozenset({"temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias"})
_MIXED_KINDS: Final = frozenset[Kind]({"template", "unknown"})
#: (kinds of servers, pattern of a model's name in lower case, features in which its servers differ from their kind)
_FAMILIES: Final[tuple[tuple[frozenset[Kind], str, Mapping[str, Any]], ...]] = (
    (
        _MIXED_KINDS,
        r"mistral|mixtral|codestral|devstral|magistral|ministral|pixtral",
        {
            "without_user": False,
            "user_first": True,
            "alternates": True,
            "user_after_result": False,
            "call_id": _MISTRAL.call_id,
        },
    ),
    (
        _MIXED_KINDS,
        r"gemma-?2\b|gemma[-:][27]b",
        {"system": "nowhere", "without_user": False, "user_first": True, "alternates": True},
    ),
    (_MIXED_KINDS, r"gemma-?3|llama-?2\b", {"without_user": False, "user_first": True, "alternates": True}),
    (_MIXED_KINDS, r"qwen", {"without_user": False}),
    (
        _MIXED_KINDS,
        r"claude",
        {
            "call_id": IdForm(_PLAIN),
            "unique_ids": True,
            "without_user": False,
            "blank": False,
            "blank_end": False,
            "images": _IMAGES,
            "user_first": True,
        },
    ),
    # Models of the next row always think, models of the row after it only if an effort is asked for.
    (
        frozenset[Kind]({"openai", *_MIXED_KINDS}),
        r"(^|/)(o[134](-|$)|gpt-5(?!\.\d|-chat))",
        {"refused_thinking": _SAMPLING, "thinks": True, "renamed": {"max_tokens": "max_completion_tokens"}},
    ),
    (
        frozenset[Kind]({"openai", *_MIXED_KINDS}),
        r"(^|/)gpt-5\.\d(?!\S*-chat)",
        {"refused_thinking": _SAMPLING, "renamed": {"max_tokens": "max_completion_tokens"}},
    ),
)

#: (pattern of "host/path", kind); the first match counts. Some gateways name the vendor in the path
_ADDRESSES: Final[tuple[tuple[str, Kind], ...]] = (
    (r"^(\w+\.)?api\.openai\.com|^[^/]*\.(openai|cognitiveservices)\.azure\.com", "openai"),
    (r"^gateway\.ai\.cloudflare\.com/.*/openai(/|$)", "openai"),
    (r"^[^/]*\bmistral\.ai(:\d+)?/", "mistral"),
    (r"^[^/]*\bdeepseek\.com(:\d+)?/", "deepseek"),
    (r"^[^/]*\bgoogleapis\.com(:\d+)?/|/google-(ai-studio|vertex-ai)/", "gemini"),
    (r"^[^/]*\bbedrock[^/]*\.(amazonaws\.com|api\.aws)(:\d+)?/|/aws-bedrock/", "bedrock"),
    (r"/mistral(ai)?/", "mistral"),
    (r"/deepseek/", "deepseek"),
)


def kind_of(address: str) -> Kind:
    """The kind of the server at an address; "" is OpenAI's own."""
    if not address:
        return "openai"
    parts = urlsplit(address)
    place = f"{parts.netloc.rpartition('@')[2]}{parts.path}/".lower()
    return next((kind for pattern, kind in _ADDRESSES if re.search(pattern, place)), "unknown")


def server_features(kind: Kind, *, model: str) -> ServerFeatures:
    """Features of a request that a server of this kind accepts for a model."""
    takes, name = TABLE[kind], model.lower()
    for kinds, pattern, changes in _FAMILIES:
        if kind in kinds and re.search(pattern, name):
            takes = replace(takes, **changes)
    if takes.free_text is not None and not takes.free_text.search(name):
        takes = replace(takes, free_text=None)
    return takes
