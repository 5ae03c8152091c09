import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from ragbandit.shared.errors import ConfigError
from ragbandit.shared.files import whole_file
from ragbandit.shared.token_usage import Tokens
from ragbandit.strategies.base import Completion, Generator, Need, Prompt, Request
from ragbandit.strategies.generators.text_feed import TextFeed, Token
from ragbandit.strategies.run import provider_of

logger = logging.getLogger("ragbandit.generator_cache")

_FORMAT: Final = 1
#: needs whose results can be stored. Calls with other needs are not cached
_KEPT: Final[frozenset[Need]] = frozenset({"completion", "stop", "logprobs", "entropy"})


class GeneratorAround(Generator):
    capabilities: frozenset[Need] = frozenset({"completion", "stop"})

    def __init__(self, generator: Generator) -> None:
        self.name = generator.name
        self.capabilities = generator.capabilities
        self.context_tokens = generator.context_tokens
        self.max_batch = getattr(generator, "max_batch", 1)
        self.provider = provider_of(generator)
        self._generator = generator

    def count_tokens(self, prompt: Prompt) -> int:
        return self._generator.count_tokens(prompt)

    async def close(self) -> None:
        await self._generator.close()


class CachedGenerator(GeneratorAround):
    """Answers a repeated request from a folder, with the tokens, dollars and seconds of the original call.

    version: everything except the generator's name that changes answers, for example its settings. The folder has a
    file for each request, named by the SHA-256 of the request. The file has the answer but not the question, and only
    its owner can read it. The folder grows without bound. It can be shared by processes, and deleted at any time.
    Answers that the deadline cut short, or with arrays (attention, hidden states), are not stored. If a file cannot be
    read or written, a warning is logged. Raises ConfigError if the folder cannot be made.
    """

    def __init__(self, generator: Generator, *, folder: str | Path, version: str = "") -> None:
        super().__init__(generator)
        self._version = version
        self._folder = Path(folder).expanduser()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make the folder {self._folder}: {error}", field="generator.cache") from error

    async def complete(self, request: Request) -> Completion:
        if not request.want <= _KEPT:
            return await self._generator.complete(request)
        key = request_key(request, generator=self.name, version=self._version)
        file = self._folder / key[:2] / f"{key}.json"
        stored = await asyncio.to_thread(_read, file)
        if stored is not None:
            await TextFeed(request).end(stored.text)
            return stored
        began = time.monotonic()
        done = await self._generator.complete(request)
        if done.finish != "deadline" and done.seconds is None:
            await asyncio.to_thread(_write, replace(done, seconds=time.monotonic() - began, first_s=None), file=file)
        return done


def request_key(request: Request, *, generator: str, version: str) -> str:
    identity = {
        "format": _FORMAT,
        "generator": generator,
        "version": version,
        "prompt": asdict(request.prompt),
        "max_tokens": request.max_tokens,
        "stop": list(request.stop),
        "want": sorted(request.want),
        "sampling": None if request.sampling is None else asdict(request.sampling),
        **({} if request.chat is None else {"chat": dict(request.chat)}),
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _read(file: Path) -> Completion | None:
    try:
        stored: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        details = dict(stored["details"])
        if "logprobs" in details:
            details["logprobs"] = tuple(Token(**token) for token in details["logprobs"])
        if "entropy" in details:
            details["entropy"] = tuple(details["entropy"])
        return Completion(**{**stored, "details": details})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        extra = {"action": "cache", "reason": repr(error)}
        logger.warning("a cached response cannot be read; the model is called again", extra=extra)
        return None


def _write(done: Completion, *, file: Path) -> None:
    try:
        stored = json.dumps(asdict(done))
        file.parent.mkdir(mode=0o700, exist_ok=True)
        with whole_file(file, durable=False, private=True) as temporary:
            temporary.write_text(stored, encoding="utf-8")
    except (OSError, TypeError, ValueError) as error:
        logger.warning("a response cannot be written to the cache", extra={"action": "cache", "reason": repr(error)})


class PricedGenerator(GeneratorAround):
    """Adds dollars to the completions of another generator. price: see `Tokens.dollars`."""

    def __init__(self, generator: Generator, *, price: Sequence[float]) -> None:
        super().__init__(generator)
        self._price = price

    async def complete(self, request: Request) -> Completion:
        done = await self._generator.complete(request)
        used = Tokens(read=done.prompt_tokens, written=done.completion_tokens, reasoning=done.reasoning_tokens)
        return replace(done, dollars=done.dollars + used.dollars(self._price))
