"""Outbound calls: addresses and redaction of every request to another machine."""

from base64 import b64encode
from urllib.parse import parse_qsl, unquote, urlsplit

from ragbandit.shared.errors import ConfigError
from ragbandit.shared.redaction import is_secret_in_query


def check_address(url: str, *, field: str, remedy: str) -> None:
    """Raises ConfigError unless it is an http(s) URL with a host and, if it names one, a port from 1 to 65535.

    Whether anybody answers there is not asked.
    """
    fault = _fault(url)
    if fault is not None:
        raise ConfigError(f"{shown_address(url)!r} is no url: {fault}", field=field, remedy=remedy)


def check_header_value(value: str, *, what: str, field: str, remedy: str) -> None:
    """Raises ConfigError, which does not show it, for a value that no header can carry. what: holds it, for a message.

    Else the error of every call would be that of a header, with the value in it.
    """
    if value != value.strip() or not (value.isascii() and value.isprintable()):
        raise ConfigError(
            f"{what} holds a line break, a space at an end, or what is not ASCII", field=field, remedy=remedy
        )


def shown_address(url: str) -> str:
    """The URL for a message: without user, password, query and fragment, where secrets may stand."""
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        scheme, rest = "", url
    # The last @ of all: in a URL that is wrong a password may hold any character.
    address = rest.rpartition("@")[2].partition("?")[0].partition("#")[0]
    return f"{scheme}{slashes}{address}"


def credentials_of(url: str) -> tuple[str, ...]:
    """The secrets in a URL that `check_address` has passed, in every form in which a server may repeat them.

    They are the password, the user where there is no password, both as Basic authentication has them, and the values of
    fields in the query whose names speak of a secret.
    """
    parts = urlsplit(url)
    user, password = parts.username or "", parts.password or ""
    basic = f"{unquote(user)}:{unquote(password)}"
    fields = [value for name, value in parse_qsl(parts.query) if is_secret_in_query(name)]
    fields += [
        raw.partition("=")[2] for raw in parts.query.split("&") if is_secret_in_query(unquote(raw.partition("=")[0]))
    ]
    secret = password or user
    secrets = (secret, unquote(secret), b64encode(basic.encode()).decode() if secret else "", *fields)
    return tuple(dict.fromkeys(each for each in secrets if each))


def _fault(url: str) -> str | None:
    """The fault of the URL in a few words that repeat nothing of it; None if there is none."""
    if not url.isprintable() or " " in url:  # urlsplit drops line breaks and tabs without a word
        return "it holds a space or a control character"
    if not url.lower().startswith(("http://", "https://")):
        return "it does not begin with http:// or https://"
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        host.encode("idna")
    except ValueError:  # brackets that do not close, a part of a name that is empty or above 63 bytes
        return "its host cannot be read"
    if not host:
        return "it names no host"
    try:
        good = parts.port != 0
    except ValueError:
        good = False
    return None if good else "its port is no number from 1 to 65535"
