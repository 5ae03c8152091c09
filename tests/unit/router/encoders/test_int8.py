"""Linear layers on 8-bit integers: near float32, independent of the batch, and the same without hardware for them."""

import numpy as np
import pytest

from ragbandit.router.encoders.int8 import Int8Linear, round_outwards

torch = pytest.importorskip("torch")


def layer(*, gelu: bool = False) -> Int8Linear:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(48, 64, generator=generator) / 8
    return Int8Linear(weight, torch.randn(48, generator=generator), gelu=gelu)


def inputs(rows: int) -> "torch.Tensor":
    return torch.randn(rows, 64, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("gelu", [False, True])
def test_results_are_near_those_of_float32(gelu):
    """Within the measured range, the result differs from float32 by about one level of the inputs."""
    x, bytes_layer = inputs(9), layer(gelu=gelu)
    exact = bytes_layer(x)
    bytes_layer.set_range(*round_outwards(bytes_layer.lowest, bytes_layer.highest))

    error = (bytes_layer(x) - exact).abs().max()

    assert 0 < error < 0.1


def test_a_row_does_not_depend_on_the_other_rows():
    """A row has the same result with and without a row of much larger entries in its batch."""
    x, bytes_layer = inputs(4), layer()
    bytes_layer.set_range(-3.0, 3.0)

    together = bytes_layer(torch.cat([x, 100 * x]))

    assert torch.allclose(together[:4], torch.cat([bytes_layer(each[None]) for each in x]), atol=1e-5)


def test_inputs_outside_of_the_range_count_as_its_ends():
    """Larger inputs are clipped and never wrap around."""
    bytes_layer = layer()
    bytes_layer.set_range(-3.0, 3.0)

    assert torch.allclose(bytes_layer(torch.full((2, 64), 1e6)), bytes_layer(torch.full((2, 64), 3.0)), atol=1e-4)


def test_a_processor_without_byte_products_computes_the_same(monkeypatch):
    """If oneDNN's result is wrong or missing, float32 arithmetic on the same integers gives the same rows."""
    x, own, other = inputs(7), layer(), layer()
    monkeypatch.setattr(Int8Linear, "_is_exact", lambda _: False)
    other.set_range(-3.0, 3.0)
    monkeypatch.undo()
    own.set_range(-3.0, 3.0)

    assert torch.allclose(own(x), other(x), atol=1e-4)


def test_ranges_are_widened_to_few_digits():
    """A range contains what was measured, is at most 1/32 wider, and contains 0."""
    for lowest, highest in ((-0.17, 12.03), (-5.31, 7.7), (0.0, 1.0), (-2.0, 0.0)):
        low, high = round_outwards(lowest, highest)

        assert lowest * (1 + 1 / 32) <= low <= lowest <= 0 <= highest <= high <= highest * (1 + 1 / 32)
        assert np.isclose(round_outwards(lowest * (1 - 1e-7), highest)[0], low)
