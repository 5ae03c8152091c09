"""Names of generators and retrievers in messages: whose section an error is about."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from ragbandit.router.config.settings import DEFAULT
from ragbandit.shared.errors import ConfigError, NotReady

Kind = Literal["generator", "retriever"]


def section_of(kind: Kind, name: str) -> str:
    """The section of the generator or retriever of this name, as the settings have it."""
    return kind if name == DEFAULT else f"{kind}s.{name}"


@contextmanager
def errors_of(section: str, *, kind: Kind) -> Iterator[None]:
    """Errors about the section `generator` or `retriever` name this one."""
    try:
        yield
    except (ConfigError, NotReady) as error:
        if section == kind:
            raise
        field, remedy = error.field, error.remedy
        if field is not None and (field == kind or field.startswith(f"{kind}.")):
            field = section + field[len(kind) :]
        raise type(error)(
            error.message, field=field, remedy=remedy and remedy.replace(f"{kind}.", f"{section}.")
        ) from error
