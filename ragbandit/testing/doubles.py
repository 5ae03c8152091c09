"""Test doubles: generators that hang, answer late, or return token details."""

import asyncio
import math
import re
from dataclasses import replace
from typing import get_args

import numpy as np

from ragbandit.strategies.base import Completion, Need, Prompt, Request
from ragbandit.strategies.generators.scripted import Scripted, ScriptedGenerator
from ragbandit.strategies.generators.token_details import Attention, Token


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


def with_details(prompt: Prompt, *, text: str) -> Scripted:
    """The text, with plausible details for every need: some tokens are sure, some are not."""
    pieces = tuple(re.findall(r"\s*\S+|\s+$", text))
    keys = tuple(re.findall(r"\s*\S+", f"{prompt.instructions}\n{prompt.body}\n{prompt.prefix}")) + pieces
    logprobs = [math.log((0.95, 0.5, 0.1)[number % 3]) for number in range(len(pieces))]
    weights = np.random.default_rng(len(text)).random((2, len(pieces), len(keys)), dtype=np.float32)
    groups = [
        ["[Retrieval]", "[No Retrieval]"],
        ["[Relevant]", "[Irrelevant]"],
        ["[Fully supported]", "[Partially supported]", "[No support / Contradictory]"],
        [f"[Utility:{level}]" for level in range(1, 6)],
    ]
    trained = {name: -1.0 - number for group in groups for number, name in enumerate(group)}
    return Scripted(
        text=text,
        details={
            "logprobs": tuple(Token(text=piece, logprob=p) for piece, p in zip(pieces, logprobs, strict=True)),
            "entropy": tuple(-p for p in logprobs),
            "attention": Attention(weights=weights / weights.sum(axis=-1, keepdims=True), keys=keys),
            "hidden_states": np.full((5, 8), len(text), dtype=np.float32) + np.arange(8, dtype=np.float32),
            "trained_tokens": (trained,) * len(pieces),
        },
    )
