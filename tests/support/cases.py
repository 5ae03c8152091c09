"""Many small cases in one test: every one is tried, and all that fail are named."""

from collections.abc import Iterator
from contextlib import contextmanager


class Cases:
    """Called with a case's name it is the context in which the case runs."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []

    @contextmanager
    def __call__(self, *name: object) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            error.add_note(f"in the case {' '.join(map(str, name))}")
            self.failures.append(error)


@contextmanager
def every_case() -> Iterator[Cases]:
    """The cases of one test. At the end it fails with every case that did, each with its name and its traceback."""
    cases = Cases()
    yield cases
    if cases.failures:
        named = "; ".join(error.__notes__[-1] for error in cases.failures)
        raise ExceptionGroup(f"{len(cases.failures)} failed: {named}", cases.failures)
