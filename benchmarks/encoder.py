"""The encoder's forward pass in every precision: one question, and sixteen together.

Baseline: the same weights and token ids through transformers' AutoModel (in bfloat16 for bfloat16, else in float32), as
one padded batch, called in turn with ours and pooled to the same vectors. All have one thread, and what is measured is
that thread's processor time, which a busy machine moves little. The questions are the handbook's.
docs/decisions/own-encoder-forward.md states what follows from it.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer

from benchmarks.figures import Figure, percentiles, print_figures
from ragbandit.router.encoders.forward import TokenBatch, load_transformer
from ragbandit.router.encoders.weights import DEFAULT_ENCODER, resolve

TOGETHER, COUNT, WARM_UP = 16, 60, 5
PRECISIONS: Final = ("float32", "bfloat16", "int8")
HANDBOOK = Path(__file__).parents[1] / "examples" / "handbook" / "questions.jsonl"
QUESTIONS = [json.loads(line)["question"] for line in HANDBOOK.read_text(encoding="utf-8").splitlines()]

#: pools the states of a batch of token ids
Pooling = Callable[[list[list[int]]], object]


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(prog="python -m benchmarks.encoder", description=__doc__).parse_args()
    folder = resolve(DEFAULT_ENCODER, setting="encoder.model", cache=None).folder
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [tokenizer.encode(question).ids for question in QUESTIONS]
    poolings = {f"AutoModel, {precision}": _library(folder, precision=precision) for precision in PRECISIONS[:2]}
    poolings |= {precision: _ours(folder, precision=precision, ids=ids) for precision in PRECISIONS}
    figures = []
    for size in (1, TOGETHER):
        milliseconds = _in_turn(poolings, ids=ids, size=size)
        for precision in PRECISIONS:
            library = "AutoModel, bfloat16" if precision == "bfloat16" else "AutoModel, float32"
            for percentile, ours, theirs in zip(
                ("p50", "p99"), percentiles(milliseconds[precision]), percentiles(milliseconds[library]), strict=True
            ):
                name = f"{precision}, {size} question{'s' * (size > 1)}, {percentile}"
                figures.append(Figure(name=name, unit="ms", ours=ours, baseline=theirs, against=library))
    print_figures(f"encoder forward, {DEFAULT_ENCODER}, one thread, processor time", figures)


def _ours(folder: Path, *, precision: str, ids: list[list[int]]) -> Pooling:
    forward = load_transformer(folder, precision=precision, device="cpu", threads=1)
    if forward.int8_layers:
        forward.set_ranges(forward.measure_ranges([TokenBatch.of([row]) for row in ids]))
    return lambda batch: forward.pool_states(TokenBatch.of(batch))


def _library(folder: Path, *, precision: str) -> Pooling:
    """Token ids -> first token and mean of tokens of every layer, by transformers."""
    from transformers import AutoModel  # it loads for seconds, and `--help` needs none

    model = AutoModel.from_pretrained(str(folder), use_safetensors=True).to(getattr(torch, precision)).eval()

    def pooled(batch: list[list[int]]) -> object:
        longest = max(map(len, batch))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in batch])  # (B, T)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in batch])  # (B, T)
        with torch.inference_mode():
            output = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
            states = torch.stack(output.hidden_states[1:]).float()  # (layers, B, T, width)
            weights = mask[None, :, :, None].float()
            both = torch.stack([states[:, :, 0], (states * weights).sum(2) / weights.sum(2)], dim=2)
            return both.transpose(0, 1).flatten(1).numpy()

    return pooled


def _in_turn(poolings: Mapping[str, Pooling], *, ids: list[list[int]], size: int) -> dict[str, list[float]]:
    """Milliseconds of each pooling; every batch goes to one after the other."""
    milliseconds: dict[str, list[float]] = {name: [] for name in poolings}
    for number in range(COUNT + WARM_UP):
        batch = sorted((ids[(number * size + place) % len(ids)] for place in range(size)), key=len)
        for name, pooling in poolings.items():
            began = time.thread_time()
            pooling(batch)
            if number >= WARM_UP:
                milliseconds[name].append((time.thread_time() - began) * 1000)
    return milliseconds


if __name__ == "__main__":
    main()
