"""Sampling of tokens, and token-level details of a local model: probabilities, attention and hidden states.

Probabilities are computed while a sequence is generated, from the distribution before any sampling. Attention and
hidden states take one more pass over the generated tokens, with "eager" attention: fused kernels do not return it.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ragbandit.strategies.base import Need, Sampling
from ragbandit.strategies.generators.text_feed import Token

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt
    from torch import Tensor
    from transformers import Cache, PreTrainedModel

#: other tokens that are facts of every place
OTHERS: Final = 5
#: least temperature that is computed with: half precision tells no nearer logits apart, and float32 knows no 1e-46
_COLDEST: Final = 1e-6


class SampledTokens:
    """The tokens sampled for one sequence: how to sample, which they are, and if wanted how likely they were."""

    def __init__(self, *, want: frozenset[Need], sampling: Sampling | None, special: Mapping[str, int]) -> None:
        self.want, self.sampling, self.special = want, sampling, dict(special)
        self.tokens: list[int] = []
        # The seed's own, whatever else is being written; on no device, so that all devices draw the same numbers.
        self._dice = random.Random(0 if sampling is None else sampling.seed)  # noqa: S311 - no secret
        self._chosen: list[float] = []
        self._others: list[list[tuple[int, float]]] = []
        self._entropy: list[float] = []
        self._trained: list[dict[str, float]] = []

    @property
    def asks(self) -> bool:
        """True if anything of the distributions is wanted."""
        return bool(self.want & {"logprobs", "entropy", "trained_tokens"})

    def draw(self) -> float:
        """The next random number, from 0 up to 1."""
        return self._dice.random()

    def note(self, facts: Sequence[float], *, token: int) -> None:
        """One row of `_distribution_facts`, of the place where this token was taken."""
        count = (len(facts) - 2 - len(self.special)) // 2
        chosen, entropy, *rest = facts
        if "logprobs" in self.want:
            best = zip(map(int, rest[count : 2 * count]), rest[:count], strict=True)
            self._chosen.append(chosen)
            self._others.append([(other, value) for other, value in best if other != token][:OTHERS])
        if "entropy" in self.want:
            self._entropy.append(max(0.0, entropy))
        if "trained_tokens" in self.want:
            self._trained.append(dict(zip(self.special, rest[2 * count :], strict=True)))

    def details(self, *, texts: Sequence[str], name: Callable[[int], str]) -> dict[str, object]:
        """By need, for as many tokens as there are texts; name: id of a token -> its text."""
        by_need: dict[str, object] = {}
        count = len(texts)
        if "logprobs" in self.want:
            by_need["logprobs"] = tuple(
                Token(text=text, logprob=chosen, others={name(other): value for other, value in others})
                for text, chosen, others in zip(texts, self._chosen[:count], self._others[:count], strict=True)
            )
        if "entropy" in self.want:
            by_need["entropy"] = tuple(self._entropy[:count])
        if "trained_tokens" in self.want:
            by_need["trained_tokens"] = tuple(self._trained[:count])
        return by_need


def sample_next(torch: Any, logits: "Tensor", *, sequences: Sequence[SampledTokens]) -> None:
    """Append the next token to every sequence, with the details it wants; logits of shape (sequences, vocabulary).

    The likeliest token, or one drawn: temperature, then top_k, then the least set that reaches top_p. All sequences
    must name the same special tokens. One transfer from the device, whatever is asked.
    """
    tokens = logits.argmax(-1)  # (sequences,)
    drawing = [row for row, text in enumerate(sequences) if text.sampling is not None]
    if drawing:
        tokens[drawing] = _draw(torch, logits[drawing], sequences=[sequences[row] for row in drawing])
    asking = [row for row, text in enumerate(sequences) if text.asks]
    flat = tokens.double()  # holds every id exactly
    if asking:
        special = list(sequences[0].special.values())
        facts = _distribution_facts(torch, logits[asking], tokens=tokens[asking], special=special)  # (asking, F)
        flat = torch.cat([flat, facts.flatten()])
    numbers = flat.tolist()
    for text, token in zip(sequences, numbers, strict=False):
        text.tokens.append(int(token))
    width = (len(numbers) - len(sequences)) // max(1, len(asking))
    for at, row in enumerate(asking):
        begin = len(sequences) + at * width
        sequences[row].note(numbers[begin : begin + width], token=sequences[row].tokens[-1])


def _distribution_facts(torch: Any, logits: "Tensor", *, tokens: "Tensor", special: Sequence[int]) -> "Tensor":
    """Shape (rows, F): log-probability of the token, entropy, the best values, their places, those of special."""
    rows = torch.log_softmax(logits.float(), dim=-1)  # (rows, vocabulary)
    values, ids = rows.topk(min(OTHERS + 1, rows.shape[1]))
    entropy = -(rows.exp() * rows).nan_to_num(0.0).sum(-1, keepdim=True)
    chosen = rows.gather(1, tokens[:, None])
    return torch.cat([part.double() for part in (chosen, entropy, values, ids, rows[:, special])], dim=1)


def _draw(torch: Any, logits: "Tensor", *, sequences: Sequence[SampledTokens]) -> "Tensor":
    """A token for every row, shape (rows,), where the cumulated probabilities pass the row's random number."""
    width = logits.shape[1]
    how = [(text.sampling, text.draw()) for text in sequences if text.sampling is not None]
    facts = [(each.temperature, each.top_k or width, each.top_p if each.top_p < 1.0 else 2.0, u) for each, u in how]
    temperature, top_k, top_p, number = torch.tensor(facts, device=logits.device).T[:, :, None]  # (rows, 1) each
    logits = logits.float() - logits.float().amax(-1, keepdim=True)  # at most 0: no temperature makes them infinite
    # Stable: among equals the first comes first, on every device and beside any other rows.
    ordered, ids = (logits / temperature.clamp(min=_COLDEST)).sort(descending=True, stable=True)
    late = torch.arange(width, device=logits.device) >= top_k
    shares = torch.softmax(ordered.masked_fill(late, -torch.inf), dim=-1)
    shares = shares.masked_fill(shares.cumsum(-1) - shares >= top_p, 0.0)  # the token that reaches top_p stays
    passed = shares.cumsum(-1)
    rank = (passed <= number * passed[:, -1:]).sum(-1, keepdim=True)
    rank = rank.minimum((shares > 0).sum(-1, keepdim=True) - 1)  # a number that rounds up to 1 passes all
    # No share is above 0 where top_p is 0 in float32, or the model's numbers are none.
    return ids.gather(1, rank.clamp(min=0))[:, 0]


def pieces(tokens: Sequence[int], *, text: Callable[[Sequence[int]], str]) -> list[str]:
    """The text that every token adds to those before it; "" for one that begins a letter only.

    text: tokens -> theirs, U+FFFD for the bytes of half a letter. Joined the pieces are text(tokens) without such an
    end. A token is read after those that made the piece before it, not after all: texts of n tokens take about 2 n.
    """
    texts = []
    begin = end = 0
    before = ""
    for count in range(1, len(tokens) + 1):
        whole = text(tokens[begin:count])
        after = whole.rstrip("\ufffd")
        texts.append(after[len(before) :])
        before = after
        if texts[-1] and after == whole:
            begin, end = end, count
            before = text(tokens[begin:end])
    return texts


def read_details(
    model: "PreTrainedModel", *, past: "Cache", tokens: Sequence[int], want: frozenset[Need]
) -> dict[str, "npt.NDArray[np.float32]"]:
    """By need: attention of the last layer, shape (heads, written, read + written), and states of the last token.

    past: keys and values of the tokens read; tokens: those written.
    """
    import torch

    ids = torch.tensor([tokens], device=model.device)
    with _eager(model):
        output = model(
            input_ids=ids,
            past_key_values=past,
            output_attentions="attention" in want,
            output_hidden_states="hidden_states" in want,
            logits_to_keep=1,
        )
    details = {}
    if "attention" in want:
        details["attention"] = output.attentions[-1][0].float().cpu().numpy()
    if "hidden_states" in want:
        details["hidden_states"] = torch.stack([state[0, -1] for state in output.hidden_states]).float().cpu().numpy()
    return details


@contextmanager
def _eager(model: "PreTrainedModel") -> "Iterator[None]":
    """The model with eager attention, for one pass."""
    usual = model.config._attn_implementation  # noqa: SLF001 - the name that transformers itself documents
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(usual)
