"""Test doubles: generators that hang, answer late, or return token details."""

import asyncio
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, get_args

import numpy as np

from ragbandit.strategies.base import Completion, Need, Prompt, Request
from ragbandit.strategies.generators.scripted import Scripted, ScriptedGenerator
from ragbandit.strategies.generators.text_feed import Attention, Token


class HangingGenerator(ScriptedGenerator):
    """Never answers and heeds no deadline."""

    async def complete(self, request: Request) -> Completion:  # noqa: ARG002 the signature of every Generator
        """Sleep for an hour."""
        await asyncio.sleep(3600)
        raise AssertionError("never reached")


class LateGenerator(ScriptedGenerator):
    """Says these texts, the last one again and again; the deadline passes in call `calls`, when all is written."""

    def __init__(self, *texts: str, calls: int | None = None) -> None:
        super().__init__(self._next, capabilities=get_args(Need))
        self._texts = texts
        self._calls = calls

    def _next(self, prompt: Prompt) -> Scripted:
        return with_details(prompt, text=self._texts[min(len(self.requests), len(self._texts)) - 1])

    async def complete(self, request: Request) -> Completion:
        """The text, whole, and in call `calls` as if time had run out with its last word."""
        done = await super().complete(request)
        return replace(done, finish="deadline") if len(self.requests) == self._calls else done


class _Details(Mapping[Need, object]):
    """Plausible details for a text that answers a prompt, each made when it is asked for."""

    def __init__(self, prompt: Prompt, *, text: str) -> None:
        self._prompt, self._text = prompt, text

    def __iter__(self) -> Iterator[Need]:
        return iter(_NEEDS)

    def __len__(self) -> int:
        return len(_NEEDS)

    def __contains__(self, need: object) -> bool:
        return need in _NEEDS

    def __getitem__(self, need: Need) -> object:
        pieces = _pieces(self._text)
        logprobs = [math.log((0.95, 0.5, 0.1)[number % 3]) for number in range(len(pieces))]
        match need:
            case "logprobs":
                return tuple(Token(text=piece, logprob=p) for piece, p in zip(pieces, logprobs, strict=True))
            case "entropy":
                return tuple(-p for p in logprobs)
            case "attention":
                prompt = self._prompt
                keys = tuple(re.findall(r"\s*\S+", f"{prompt.instructions}\n{prompt.body}\n{prompt.prefix}")) + pieces
                random = np.random.default_rng(len(self._text))
                weights = random.random((2, len(pieces), len(keys)), dtype=np.float32)
                return Attention(weights=weights / weights.sum(axis=-1, keepdims=True), keys=keys)
            case "hidden_states":
                return np.full((5, 8), len(self._text), dtype=np.float32) + np.arange(8, dtype=np.float32)
            case "trained_tokens":
                return (_TRAINED,) * len(pieces)
        raise KeyError(need)


_NEEDS: Final[tuple[Need, ...]] = ("logprobs", "entropy", "attention", "hidden_states", "trained_tokens")


def _pieces(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\s*\S+|\s+$", text))


_GROUPS: Final = [
    ["[Retrieval]", "[No Retrieval]"],
    ["[Relevant]", "[Irrelevant]"],
    ["[Fully supported]", "[Partially supported]", "[No support / Contradictory]"],
    [f"[Utility:{level}]" for level in range(1, 6)],
]
_TRAINED: Final = {name: -1.0 - number for group in _GROUPS for number, name in enumerate(group)}


def with_details(prompt: Prompt, *, text: str) -> Scripted:
    """The text, with plausible details for every need: some tokens are sure, some are not."""
    return Scripted(text=text, details=_Details(prompt, text=text))
