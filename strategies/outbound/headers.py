"""Headers of requests to other servers: a value that no header can carry is refused at the start."""

from ragbandit.router.errors import ConfigError

__all__ = ["check_header_value"]


def check_header_value(value: str, *, what: str, field: str, remedy: str) -> None:
    """Raises ConfigError, which does not show it, for a value that no header can carry. what: holds it, for a message.

    Else the error of every call would be that of a header, with the value in it.
    """
    if value != value.strip() or not (value.isascii() and value.isprintable()):
        raise ConfigError(
            f"{what} holds a line break, a space at an end, or what is not ASCII", field=field, remedy=remedy
        )
