"""What a local model tells beside its text: how sure it was, where it looked, what it had in mind.

Probabilities are taken while the text is written, from the distribution before any sampling. Attention and hidden
states take one more pass over all tokens, with attention computed in the open ("eager"): fast kernels do not give it.
"""

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from strategies.base import Need, Sampling
from strategies.details import Attention, HiddenStates, Token

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Generator as Dice
    from torch import Tensor
    from transformers import PreTrainedModel

__all__ = ["Probabilities", "dice", "looked", "picked"]

#: other tokens that are told of every place
OTHERS: Final = 5


class Probabilities:
    """Log-probabilities of every token written, as far as they are wanted."""

    def __init__(self, torch: Any, *, want: frozenset[Need], special: Mapping[str, int]) -> None:
        self._torch, self._want, self._special = torch, want, dict(special)
        self._chosen: list[float] = []
        self._others: list[list[tuple[int, float]]] = []
        self._entropy: list[float] = []
        self._trained: list[dict[str, float]] = []

    def note(self, logits: "Tensor", *, token: int) -> None:
        """The distribution that this token was taken from; logits of shape (vocabulary,)."""
        if not self._want & {"logprobs", "entropy", "trained_tokens"}:
            return
        row = self._torch.log_softmax(logits.float(), dim=-1)
        if "logprobs" in self._want:
            self._chosen.append(float(row[token]))
            values, places = row.topk(OTHERS + 1)
            best = zip(places.tolist(), values.tolist(), strict=True)
            self._others.append([(place, value) for place, value in best if place != token][:OTHERS])
        if "entropy" in self._want:
            self._entropy.append(max(0.0, -float((row.exp() * row).nan_to_num(0.0).sum())))
        if "trained_tokens" in self._want:
            self._trained.append({name: float(row[place]) for name, place in self._special.items()})

    def details(self, *, texts: Sequence[str], name: Any) -> dict[str, object]:
        """By need, for as many tokens as there are texts; name: id of a token -> its text."""
        found: dict[str, object] = {}
        count = len(texts)
        if "logprobs" in self._want:
            found["logprobs"] = tuple(
                Token(text=text, logprob=chosen, others={name(place): value for place, value in others})
                for text, chosen, others in zip(texts, self._chosen[:count], self._others[:count], strict=True)
            )
        if "entropy" in self._want:
            found["entropy"] = tuple(self._entropy[:count])
        if "trained_tokens" in self._want:
            found["trained_tokens"] = tuple(self._trained[:count])
        return found


def dice(torch: Any, sampling: Sampling | None, *, device: str) -> "Dice | None":
    """What the draws of one text come from: the seed's, whatever else is being written."""
    return None if sampling is None else torch.Generator(device=device).manual_seed(sampling.seed)


def picked(torch: Any, logits: "Tensor", *, sampling: Sampling | None, generator: "Dice | None") -> int:
    """The likeliest token, or one drawn: temperature, then top_k, then the least set that reaches top_p."""
    if sampling is None:
        return int(logits.argmax())
    scaled = logits.float() / sampling.temperature
    ordered, places = scaled.sort(descending=True)
    if sampling.top_k:
        ordered, places = ordered[: sampling.top_k], places[: sampling.top_k]
    shares = torch.softmax(ordered, dim=-1)
    if sampling.top_p < 1.0:
        # The token that reaches top_p stays, and so does the first one, whatever top_p is.
        shares = shares.masked_fill(shares.cumsum(-1) - shares >= sampling.top_p, 0.0)
    return int(places[torch.multinomial(shares, 1, generator=generator)])


def looked(
    torch: Any, model: "PreTrainedModel", *, ids: Sequence[int], read: int, want: frozenset[Need], names: Sequence[str]
) -> dict[str, object]:
    """Attention of the last layer and hidden states of the last token, by need; ids: read, then written."""
    if not want & {"attention", "hidden_states"} or len(ids) <= read:
        return {}
    with _eager(model):
        tokens = torch.tensor([list(ids)], device=model.device)  # (1, T)
        output = model(
            input_ids=tokens, use_cache=False, output_attentions="attention" in want, output_hidden_states=True
        )
    found: dict[str, object] = {}
    if "attention" in want:
        weights = output.attentions[-1][0, :, read:].float().cpu().numpy()  # (heads, written, T)
        found["attention"] = Attention(weights=weights.astype(np.float32), keys=tuple(names))
    if "hidden_states" in want:
        states = [state[0, -1].float().cpu().numpy() for state in output.hidden_states]
        hidden: HiddenStates = np.stack(states).astype(np.float32)  # (layers + 1, d)
        found["hidden_states"] = hidden
    return found


@contextmanager
def _eager(model: "PreTrainedModel") -> "Iterator[None]":
    """The model with attention in the open, for one pass."""
    usual = model.config._attn_implementation  # noqa: SLF001 - the name that transformers itself documents
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(usual)
