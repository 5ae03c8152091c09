"""Generators around others: priced, and the response cache: completions kept in a folder for repeated runs.

A cached answer keeps the tokens, dollars and seconds of the call that made it, so that the cost of an arm stays what
it would be without the cache; only the waiting is spared.
"""

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

#: of the files' format: another number finds none of the old files
_FORMAT: Final = 1
#: what is told beyond the text and can be kept as JSON; calls that want more are always made
_KEPT: Final[frozenset[Need]] = frozenset({"completion", "stop", "logprobs", "entropy"})


class GeneratorAround(Generator):
    """Another generator, whose calls somebody has a hand in."""

    capabilities: frozenset[Need] = frozenset({"completion", "stop"})

    def __init__(self, generator: Generator) -> None:
        self.name = generator.name
        self.capabilities = generator.capabilities
        self.context_tokens = generator.context_tokens
        self.max_batch = getattr(generator, "max_batch", 1)
        self.provider = provider_of(generator)
        self._generator = generator

    def count_tokens(self, prompt: Prompt) -> int:
        """The generator's own count."""
        return self._generator.count_tokens(prompt)

    async def close(self) -> None:
        """Close the generator."""
        await self._generator.close()


class CachedGenerator(GeneratorAround):
    """Another generator with a memory in a folder: the same request gets the same answer without a call.

    version: whatever changes the answers beside the generator's name, for example its settings. The folder holds one
    file per request, named by its SHA-256; questions are not in it, answers are, readable by their owner alone. It
    grows without bound, and may be deleted at any time. Several processes may share it. An answer that the deadline
    cut short, or that comes with arrays (attention, hidden states), is not kept. A file that cannot be read is made
    anew; one that cannot be written is missed, which the log says. Raises ConfigError if the folder cannot be made.
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
        """The answer kept, with `seconds` of the call that made it, or else the generator's, which is kept.

        Whoever reads along is given a kept answer in one piece.
        """
        if not request.want <= _KEPT:
            return await self._generator.complete(request)
        key = request_key(request, generator=self.name, version=self._version)
        file = self._folder / key[:2] / f"{key}.json"
        if (stored := await asyncio.to_thread(_read, file)) is not None:
            await TextFeed(request).end(stored.text)
            return stored
        began = time.monotonic()
        done = await self._generator.complete(request)
        if done.finish != "deadline" and done.seconds is None:
            await asyncio.to_thread(_write, replace(done, seconds=time.monotonic() - began, first_s=None), file=file)
        return done


def request_key(request: Request, *, generator: str, version: str) -> str:
    """SHA-256 of all that decides the answer, in hexadecimal digits; the deadline does not."""
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
            details["logprobs"] = tuple(Token(**told) for told in details["logprobs"])
        if "entropy" in details:
            details["entropy"] = tuple(details["entropy"])
        return Completion(**{**stored, "details": details})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        logger.warning(
            "a cached response cannot be read; the model is called again",
            extra={"action": "cache", "reason": repr(error)},
        )
        return None


def _write(done: Completion, *, file: Path) -> None:
    """Keep the completion; a failure to is logged."""
    try:
        stored = json.dumps(asdict(done))
        file.parent.mkdir(mode=0o700, exist_ok=True)
        with whole_file(file, durable=False, private=True) as beside:
            beside.write_text(stored, encoding="utf-8")
    except (OSError, TypeError, ValueError) as error:
        logger.warning("a response cannot be written to the cache", extra={"action": "cache", "reason": repr(error)})


class PricedGenerator(GeneratorAround):
    """Another generator, with dollars in its completions. price: as `Tokens.dollars` takes them."""

    def __init__(self, generator: Generator, *, price: Sequence[float]) -> None:
        super().__init__(generator)
        self._price = price

    async def complete(self, request: Request) -> Completion:
        """The generator's completion, and what its tokens cost."""
        done = await self._generator.complete(request)
        used = Tokens(read=done.prompt_tokens, written=done.completion_tokens, reasoning=done.reasoning_tokens)
        return replace(done, dollars=done.dollars + used.dollars(self._price))
