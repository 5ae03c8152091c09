"""Loading models of transformers without its progress bars, which would be drawn over ours."""

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_bar"]


@contextmanager
def without_bar() -> Iterator[None]:
    """No progress bar from transformers inside. Raises ImportError where it is not installed."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
