"""Training of a `EncoderBody` and the layers on it, step by step, and how these layers begin."""

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from ragbandit.router.policies.finetuned.body import EncoderBody, Vector32
from ragbandit.shared.errors import PolicyFault

if TYPE_CHECKING:
    from torch import Tensor

#: what the keys of heads begin with
HEAD: Final = "head/"
# Standard deviation of fresh weights: the initializer_range of BERT and its children.
_SPREAD: Final = 0.02
_BETAS: Final = (0.9, 0.999)
_EPSILON: Final = 1e-8


class Tuning:
    """Weights in training, each tensor with AdamW's two moments beside it: slots of shape (3, ...), float32.

    "encoder" is (3, P), "pre" is (3, d, d + 1), "head/<arm>" is (3, d + 1): values, means, mean squares.
    """

    def __init__(self, body: EncoderBody, *, slots: "dict[str, Tensor]") -> None:
        import torch

        self.body, self.slots = body, slots
        encoder = slots["encoder"]
        #: what autograd and AdamW see: windows on the slots' values, in the order of the body's parameters
        self._encoder = {name: view.requires_grad_() for name, view in body.views(encoder[0]).items()}
        self._others: dict[str, Tensor] = {}
        # Fused: one pass over the weights, which are more than fit into any cache.
        self._adamw = torch.optim.AdamW([*self._encoder.values()], betas=_BETAS, eps=_EPSILON, fused=True)
        means, squares = body.views(encoder[1]), body.views(encoder[2])
        for name, leaf in self._encoder.items():
            self._adamw.state[leaf] = {"exp_avg": means[name], "exp_avg_sq": squares[name]}
        for key in slots:
            if key != "encoder":
                self._follow(key)

    @classmethod
    def fresh(cls, body: EncoderBody, *, seed: int) -> "Tuning":
        """Before the first step: the encoder as it came, the square layer as `fresh_pre` begins it, no heads."""
        pre = body.tensor(fresh_pre(body.width, seed=seed))
        return cls(body, slots={"encoder": _slot(body.initial), "pre": _slot(pre)})

    def _follow(self, key: str) -> None:
        value, mean, square = self.slots[key]
        leaf = self._others[key] = value.detach().requires_grad_()
        self._adamw.state[leaf] = {"exp_avg": mean, "exp_avg_sq": square}
        self._adamw.param_groups[0]["params"].append(leaf)

    def add_head(self, arm: str, *, seed: int) -> None:
        """A head for an arm, as `fresh_head` begins it."""
        self.slots[HEAD + arm] = _slot(self.body.tensor(fresh_head(arm, width=self.body.width, seed=seed)))
        self._follow(HEAD + arm)

    def drop_head(self, arm: str) -> None:
        """Forget a head that has learned nothing."""
        del self.slots[HEAD + arm]
        leaf = self._others.pop(HEAD + arm)
        del self._adamw.state[leaf]
        known = self._adamw.param_groups[0]["params"]
        known[:] = [other for other in known if other is not leaf]

    def hidden(self, texts: Sequence[str]) -> "Tensor":
        """Input of the heads, without dropout: (B, d)."""
        import torch

        with torch.no_grad():
            return self.body.hidden(texts, encoder=self._encoder, pre=self._others["pre"], dropout=None)

    def descend(
        self,
        texts: Sequence[str],
        *,
        arms: Sequence[str],
        loss: "Callable[[Tensor], Tensor]",
        rate: float,
        decay: float,
        step: int,
        dropout: int,
    ) -> float:
        """One step of AdamW (Loshchilov and Hutter 2019, algorithm 2) on a batch; the loss before it.

        loss: from outputs (B, K), a column per arm of `arms`, to one number. step counts from 1. Heads that are not
        in `arms` move as in one matrix of all heads: with a gradient of zero.
        Raises PolicyFault, with nothing changed, where the loss or a gradient is not finite, or too large for AdamW,
        which squares it.
        """
        import torch

        with self.body.fixed_threads(), torch.enable_grad():
            seen = self.body.hidden(texts, encoder=self._encoder, pre=self._others["pre"], dropout=dropout)  # (B, d)
            heads = torch.stack([self._others[HEAD + arm] for arm in arms])  # (K, d + 1)
            value = loss(torch.nn.functional.linear(seen, heads[:, :-1], heads[:, -1]))
            number = float(value.detach())
            if not math.isfinite(number):
                raise PolicyFault(f"the loss is {number}: the weights have diverged")
            leaves = [*self._encoder.values(), *self._others.values()]
            gradients = torch.autograd.grad(value, leaves, allow_unused=True)
            _check_gradients([gradient for gradient in gradients if gradient is not None])
            others = len(self._encoder)
            for index, (leaf, gradient) in enumerate(zip(leaves, gradients, strict=True)):
                # A head joins with no moments, as if it had been there: its count of steps is everybody's.
                self._adamw.state[leaf]["step"] = torch.tensor(float(step - 1))
                leaf.grad = torch.zeros_like(leaf) if gradient is None and index >= others else gradient
            self._adamw.param_groups[0].update(lr=rate, weight_decay=decay)
            self._adamw.step()
            self._adamw.zero_grad(set_to_none=True)
        return number


def _check_gradients(gradients: "Sequence[Tensor]") -> None:
    """Raises PolicyFault unless all squares are finite in float32: a bad number would stay in the moments for good."""
    import torch

    norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients])  # (tensors,)
    if not bool((norms * norms).isfinite().all()):
        raise PolicyFault("a gradient is not finite or too large to be squared: the weights have diverged")


def dropout_seed(seed: int, *, step: int) -> int:
    """The seed that `EncoderBody.hidden` is given at a step, so that a replay leaves out the same units."""
    return int.from_bytes(hashlib.sha256(f"{seed} {step}".encode()).digest()[:7], "big")


def fresh_pre(width: int, *, seed: int) -> Vector32:
    """The square layer before training: normal of spread .02, the bias zero and last; shape (d, d + 1)."""
    pre = np.zeros((width, width + 1), dtype=np.float32)
    pre[:, :-1] = np.random.default_rng([seed, 0]).normal(0.0, _SPREAD, (width, width))
    return pre


def fresh_head(arm: str, *, width: int, seed: int) -> Vector32:
    """An arm's head before training, from its name alone and so the same whenever it joins; shape (d + 1,)."""
    named = int.from_bytes(hashlib.sha256(arm.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    head = np.zeros(width + 1, dtype=np.float32)
    head[:-1] = np.random.default_rng([seed, 1, named]).normal(0.0, _SPREAD, width)
    return head


def _slot(values: "Tensor") -> "Tensor":
    """The values with two moments of zero: (3, ...)."""
    import torch

    slot = torch.zeros((3, *values.shape), dtype=torch.float32, device=values.device)
    slot[0] = values
    return slot
