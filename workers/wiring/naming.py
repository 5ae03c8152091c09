"""Names in messages: which generator or retriever an error is about."""

from collections.abc import Iterator
from contextlib import contextmanager

from ragbandit.router.config.named_sections import Kind
from ragbandit.shared.errors import ConfigError, NotReady


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
