"""Linear layers on 8-bit integers, for the encoder on processors that multiply bytes in hardware (VNNI).

Weights have one scale per output (symmetric). Inputs have one fixed range per layer, measured on reference questions,
so the features of a question do not depend on other questions. On processors without VNNI, and if oneDNN's result is
wrong, the same integers are multiplied as float32. Importing this module does not import torch.
"""

import math
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

#: lowest and highest input of every layer, shape (layers, 2)
Ranges = npt.NDArray[np.float64]

#: largest integer that stands for an input; the smallest is 0
_LEVELS: Final = 255
#: largest absolute integer that stands for a weight
_LARGEST: Final = 127
#: ranges are widened to multiples of (power of two below) / 32, so that processors that round differently agree
_STEPS: Final = 32


class Int8Linear:
    """x -> x @ weight.T + bias, float32 in and out, optionally followed by GELU. weight: shape (outputs, inputs).

    Until `set_range` is called, computes in float32 and measures the range of its inputs; then computes in 8 bits.
    """

    def __init__(self, weight: "Tensor", bias: "Tensor", *, gelu: bool = False) -> None:
        import torch

        self._torch, self._gelu = torch, gelu
        self._weight, self._bias = weight, bias
        self.lowest = self.highest = 0.0
        self._run = self._measure

    def __call__(self, x: "Tensor") -> "Tensor":
        return self._run(x)

    def set_range(self, lowest: float, highest: float) -> None:
        """Compute in 8 bits from now on; inputs are clipped to the range. lowest <= 0 <= highest."""
        torch = self._torch
        self._step = max(highest - lowest, 1e-8) / _LEVELS
        self._zero = round(-lowest / self._step)
        self._scales = (self._weight.abs().amax(1) / _LARGEST).clamp_(min=1e-8)  # (outputs,)
        integers = (self._weight / self._scales[:, None]).round_().clamp_(-_LARGEST, _LARGEST)
        self._weight = integers  # float32 integers, for `_emulate`
        try:
            self._packed = torch.ops.onednn.qlinear_prepack(integers.to(torch.int8), None)
            self._zeros = torch.zeros(len(self._scales), dtype=torch.int32)
            exact = self._is_exact()
        except (AttributeError, RuntimeError, TypeError):  # private functions of torch
            exact = False
        self._run = self._multiply if exact else self._emulate
        if exact:
            del self._weight

    def _measure(self, x: "Tensor") -> "Tensor":
        lowest, highest = map(float, self._torch.aminmax(x))
        self.lowest, self.highest = min(self.lowest, lowest), max(self.highest, highest)
        return self._activate(self._torch.nn.functional.linear(x, self._weight, self._bias))

    def _multiply(self, x: "Tensor") -> "Tensor":
        inputs = self._quantize(x).to(self._torch.uint8)
        weights = self._packed, self._scales, self._zeros, self._bias
        activation, algorithm = ("gelu", "none") if self._gelu else ("none", "")
        # Scale, zero point and type of the output. For float32, oneDNN accepts only the scale 1 and the zero point 0.
        output = 1.0, 0, self._torch.float32
        result: Tensor = self._torch.ops.onednn.qlinear_pointwise(
            inputs, self._step, self._zero, *weights, *output, activation, [], algorithm
        )
        return result

    def _emulate(self, x: "Tensor") -> "Tensor":
        """Compute the result of `_multiply` by float32 products of the same integers."""
        inputs = self._quantize(x).floor_().sub_(self._zero)
        products = self._torch.nn.functional.linear(inputs, self._weight)
        return self._activate(self._torch.addcmul(self._bias, products, self._scales * self._step))

    def _quantize(self, x: "Tensor") -> "Tensor":
        """Levels of the inputs, from 0 to 255, plus a fraction that conversion to integers drops."""
        return self._torch.add(self._zero + 0.5, x, alpha=1.0 / self._step).clamp_(0.0, _LEVELS + 0.49)

    def _activate(self, x: "Tensor") -> "Tensor":
        return self._torch.nn.functional.gelu(x) if self._gelu else x

    def _is_exact(self) -> bool:
        """Whether oneDNN's result is right. Its 16-bit sums overflow on AVX2 without VNNI."""
        torch = self._torch
        largest = torch.full((2, self._weight.shape[1]), (_LEVELS - self._zero) * self._step)
        largest[1, ::2] = -self._zero * self._step
        expected, result = self._emulate(largest), self._multiply(largest)
        return bool(torch.allclose(result, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())))


def round_outwards(lowest: float, highest: float) -> tuple[float, float]:
    """Round both ends of a range outwards, to numbers with few digits."""
    return -_round_up(-lowest), _round_up(highest)


def _round_up(size: float) -> float:
    if size <= 0.0:
        return 0.0
    step = 2.0 ** math.floor(math.log2(size)) / _STEPS
    return math.ceil(size / step) * step
