"""Facts about the models in a log of another tool: their costs, questions and scores."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ragbandit.shared.texts.formats import counted, money

#: characters of the question, whether it is a later turn, dollars, prompt tokens, completion tokens, scores by name
Fact = tuple[float, float, float, float, float, Mapping[str, float]]


def fact_of(row: Mapping[str, Any]) -> Fact:
    dollars, read, written = (row.get(name, np.nan) for name in ("dollars", "prompt_tokens", "completion_tokens"))
    length = np.nan if row["question"] is None else len(row["question"])  # a log may have no texts
    return length, row.get("turn", 1) > 1, dollars, read, written, row.get("scores", {})


def model_facts(by_model: Mapping[str, Sequence[Fact]]) -> Iterator[dict[str, Any]]:
    """Yield a row for each model, the most frequent first. Costs are None if the log has none."""
    total = sum(map(len, by_model.values()))
    for model, facts in sorted(by_model.items(), key=lambda item: -len(item[1])):
        numbers, scores = np.array([fact[:5] for fact in facts]), defaultdict[str, list[float]](list)
        for name, score in (pair for fact in facts for pair in fact[5].items()):
            scores[name].append(score)
        means = {name: f"{sum(values) / len(values):.3g} (of {len(values)})" for name, values in scores.items()}
        costs = numbers[~np.isnan(numbers[:, 2]), 2]
        row = {"model": model or "(not named)", "questions": len(facts), "share": len(facts) / total}
        row |= {"dollars": float(costs.mean()) if costs.size else None, "in all": float(costs.sum()) or None}
        length = numbers[:, 0].mean().item()
        row["length"] = None if np.isnan(length) else length
        yield row | {"later turns": numbers[:, 1].mean().item(), "scores": means}


def sentences(by_model: Mapping[str, Sequence[Fact]], *, prices: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Yield sentences about the log and what it cannot show. prices: model -> (input, output, ...), $ per million."""
    numbers = [np.array([fact[:5] for fact in facts]) for facts in sorted(by_model.values(), key=len)]
    if len(numbers) > 1 and len(numbers[-2]) >= 10:
        # different: at least four standard errors between the means
        gap = np.abs(np.subtract(*(part[:, :2].mean(0) for part in numbers[-2:])))
        if (gap > 4.0 * np.sqrt(sum(part[:, :2].var(0) / len(part) for part in numbers[-2:])) + 1e-9).any():
            yield "the two most frequent models got different questions: see their length and later turns"
    tokens = np.concatenate(numbers)[:, 3:]
    tokens = tokens[~np.isnan(tokens).any(axis=1)]
    for model, (of_input, of_output, *_) in prices.items() if len(tokens) else ():
        short, long = np.quantile(tokens[:, 1], (0.1, 0.9))
        low, high = (
            float(tokens[:, 0].sum() * of_input + len(tokens) * of_output * end) / 1e6 for end in (short, long)
        )
        span = f"{money(low, 'dollars')} to {money(high, 'dollars')} with answers of {short:.0f} to {long:.0f} tokens"
        yield f"{model} would have cost {span}, for {counted(len(tokens), 'question')} whose tokens are known"
    if not len(tokens) or not prices:
        missing = "its tokens are not known" if prices else "no model has token_prices in the configuration"
        yield f"what another model would have cost cannot be said: {missing}"
    reason = "without the probabilities with which models were chosen, this log cannot show which model answers better"
    yield f"{reason}: its means are no comparison"
