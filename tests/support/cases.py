"""Many small cases in one test: every one is tried, and all that fail are named."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager


class Cases:
    """Called with a case's name it is the context in which the case runs."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.tracebacks: list[str] = []

    @contextmanager
    def __call__(self, *name: object) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.names.append(" ".join(map(str, name)))
            self.tracebacks.append(f"--- {self.names[-1]}\n{''.join(traceback.format_exception(error))}")


@contextmanager
def every_case() -> Iterator[Cases]:
    """The cases of one test. At the end it fails with every case that did, each with its name and its traceback."""
    cases = Cases()
    yield cases
    if cases.names:
        raise AssertionError("\n\n".join([f"{len(cases.names)} failed: {'; '.join(cases.names)}", *cases.tracebacks]))
