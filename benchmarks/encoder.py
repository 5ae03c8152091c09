"""The encoder's own forward pass: one question, and sixteen together.

Baseline: the same weights, precision and token ids through transformers' AutoModel, as one padded batch, called in turn
with ours and pooled to the same vectors. Both have
one thread, and what is measured is that thread's processor time, which a busy machine moves little. The questions are
the handbook's. docs/decisions/own-encoder-forward.md says what follows from it.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer
from transformers import AutoModel

from benchmarks.figures import Figure, percentiles, print_figures
from ragbandit.router.encoders.forward import Forward, TokenBatch, load_transformer
from ragbandit.router.encoders.weights import DEFAULT_ENCODER, resolve

TOGETHER, COUNT, WARM_UP = 16, 60, 5
PRECISIONS: Final = ("float32", "bfloat16", "int8")
HANDBOOK = Path(__file__).parents[1] / "examples" / "handbook" / "questions.jsonl"
QUESTIONS = [json.loads(line)["question"] for line in HANDBOOK.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    """Print the table."""
    folder = resolve(DEFAULT_ENCODER, setting="encoder.model", cache=None).folder
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [tokenizer.encode(question).ids for question in QUESTIONS]
    figures = []
    for precision in PRECISIONS:
        own = load_transformer(folder, precision=precision, device="cpu", threads=1)
        if own.byte_layers:
            own.fix(own.measure([TokenBatch.of([each]) for each in ids]))
        library = _library(folder, precision="float32" if precision == "int8" else precision)
        for size in (1, TOGETHER):
            ours, theirs = _in_turn(own, library, ids=ids, size=size)
            for name, place in (("p50", 0), ("p99", 1)):
                title = f"{precision}, {size} question{'s' * (size > 1)}, {name}"
                figures.append(
                    Figure(name=title, unit="ms", ours=ours[place], baseline=theirs[place], against="AutoModel")
                )
    print_figures(f"encoder forward, {DEFAULT_ENCODER}, one thread, processor time", figures)


def _library(folder: Path, *, precision: str) -> Callable[[list[list[int]]], object]:
    """Token ids -> first token and mean of tokens of every layer, by transformers."""
    model = AutoModel.from_pretrained(str(folder), use_safetensors=True).to(getattr(torch, precision)).eval()

    def pooled(batch: list[list[int]]) -> object:
        longest = max(map(len, batch))
        ids = torch.tensor([each + [0] * (longest - len(each)) for each in batch])  # (B, T)
        mask = torch.tensor([[1] * len(each) + [0] * (longest - len(each)) for each in batch])  # (B, T)
        with torch.inference_mode():
            seen = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
            states = torch.stack(seen.hidden_states[1:]).float()  # (layers, B, T, width)
            weights = mask[None, :, :, None].float()
            both = torch.stack([states[:, :, 0], (states * weights).sum(2) / weights.sum(2)], dim=2)
            return both.transpose(0, 1).flatten(1).numpy()

    return pooled


def _in_turn(
    own: Forward, library: Callable[[list[list[int]]], object], *, ids: list[list[int]], size: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """p50 and p99 in milliseconds of both, each batch given to one and then to the other."""
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(COUNT + WARM_UP):
        batch = sorted((ids[(number * size + place) % len(ids)] for place in range(size)), key=len)
        calls: tuple[Callable[[], object], ...] = (
            partial(own.pooled, TokenBatch.of(batch)),
            partial(library, batch),
        )
        for call, times in zip(calls, found, strict=True):
            began = time.thread_time()
            call()
            times.append((time.thread_time() - began) * 1000)
    return percentiles(found[0][WARM_UP:]), percentiles(found[1][WARM_UP:])


if __name__ == "__main__":
    main()
