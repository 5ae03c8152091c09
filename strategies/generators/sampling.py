"""Sampling of tokens, and token-level details of a local model: probabilities, attention and hidden states.

Probabilities are computed while a sequence is generated, from the distribution before any sampling. Attention and
hidden states take one more pass over the generated tokens, with "eager" attention: fused kernels do not return it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ragbandit.strategies.base import Need, Sampling
from ragbandit.strategies.generators.text_feed import Token

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt
    from torch import Generator, Tensor
    from transformers import Cache, PreTrainedModel

#: other tokens that are facts of every place
OTHERS: Final = 5
#: least temperature that is computed with
_COLDEST: Final = 1e-6


class SampledTokens:
    """The tokens sampled for one sequence: how to sample, which they are, and if wanted how likely they were."""

    def __init__(self, *, want: frozenset[Need], sampling: Sampling | None, special: Mapping[str, int]) -> None:
        self.want, self.sampling, self.special = want, sampling, dict(special)
        self.tokens: list[int] = []
        #: the seed's own, whatever else is being written
        self.dice: Generator | None = None
        self._chosen: list[float] = []
        self._others: list[list[tuple[int, float]]] = []
        self._entropy: list[float] = []
        self._trained: list[dict[str, float]] = []

    @property
    def asks(self) -> bool:
        """True if anything of the distributions is wanted."""
        return bool(self.want & {"logprobs", "entropy", "trained_tokens"})

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
    for row, text in enumerate(sequences):
        if text.sampling is not None:
            text.dice = text.dice or torch.Generator().manual_seed(text.sampling.seed)
            tokens[row] = _draw(torch, logits[row], how=text.sampling, dice=text.dice)
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


def _draw(torch: Any, logits: "Tensor", *, how: Sampling, dice: "Generator") -> "Tensor":
    """A token of one place, drawn as transformers' `generate` draws; logits of shape (vocabulary,)."""
    from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    # Half precision tells no nearer logits apart than the coldest temperature, and float32 knows no 1e-46.
    warpers = LogitsProcessorList([TemperatureLogitsWarper(max(how.temperature, _COLDEST))])
    if how.top_k:
        warpers.append(TopKLogitsWarper(how.top_k))
    if how.top_p < 1.0:
        warpers.append(TopPLogitsWarper(how.top_p))
    scores = logits.float().cpu()[None]  # on no card, so that all devices draw alike
    shares = torch.softmax(warpers(None, scores - scores.amax()), dim=-1)
    return torch.multinomial(shares[0], 1, generator=dice)[0]


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
