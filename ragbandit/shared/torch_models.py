"""Models of torch, for whoever loads one: the device, the precision, quiet loading, and linear layers laid out once.

Importing this module imports no torch; its functions do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ragbandit.shared.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


def device_of(device: str, *, field: str) -> str:
    """The device that "auto", "cpu" or "cuda" is here. field: the setting, for messages. Raises ConfigError."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("no CUDA device here", field=field, remedy='use "auto" or "cpu"')
    if device not in {"auto", "cpu", "cuda"}:
        raise ConfigError(f"unknown device {device!r}", field=field, remedy='use "auto", "cpu" or "cuda"')
    return device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def precision_of(precision: str, *, device: str, field: str) -> str:
    """The precision that "auto", "float32" or "bfloat16" is on this device. Raises ConfigError.

    "auto" is bfloat16 where the processor or the card multiplies it in hardware, else float32.
    """
    import torch

    if precision in {"float32", "bfloat16"}:
        return precision
    if precision != "auto":
        remedy = 'use "auto", "float32" or "bfloat16"'
        raise ConfigError(f"unknown precision {precision!r}", field=field, remedy=remedy)
    if device == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    features = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return "bfloat16" if features.get("avx512_bf16") or features.get("amx_bf16") else "float32"


@contextmanager
def without_bar() -> Iterator[None]:
    """No progress bar from transformers inside, which would be drawn over ours. Raises ImportError without it."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def packed_linear(weight: "Tensor", bias: "Tensor | None", *, rows: int) -> "Callable[[Tensor], Tensor] | None":
    """Make x -> x @ weight.T + bias with the weight laid out once for oneDNN, for about so many rows; or None.

    torch lays an ordinary weight out anew, or badly, at every call: for one question, or one token, that is most of the
    time. The operations are those torch's own compiler uses, not a public interface; so their result is checked here.
    None where they are missing or differ, or the weight is on a card.
    """
    import torch

    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return None
    try:
        with torch.inference_mode():
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)  # noqa: SLF001 - see the docstring
            run = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001
            probe = torch.linspace(-1, 1, 2 * weight.shape[1]).view(2, -1).to(weight.dtype)
            fast: Callable[[Tensor], Tensor] = lambda x: run(x, packed, bias, "none", [], "")  # noqa: E731
            plain = torch.nn.functional.linear(probe, weight, bias)
            near = torch.allclose(fast(probe).float(), plain.float(), rtol=0.02, atol=0.02)
    except (AttributeError, RuntimeError, TypeError):
        return None
    return fast if near else None
