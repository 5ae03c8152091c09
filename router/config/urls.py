"""Settings that are URLs of servers: checks them, hides their secrets in output, and refuses secrets in the file."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from ragbandit.shared.errors import ConfigError
from ragbandit.shared.texts.redaction import HIDDEN, credentials_in, shown_value, without_secrets

#: environment variable -> the setting that it sets; its value is a text, not YAML
PLAIN_VARIABLES: Final = {"DATABASE_URL": "database_url", "REDIS_URL": "redis_url"}
#: setting with a URL -> (supported schemes, remedy)
_URLS = {
    "database_url": (("sqlite", "postgresql"), "use sqlite:///FILE or postgresql+psycopg://host/name"),
    "redis_url": (("redis", "rediss", "unix"), "name one server, as redis://host:6379/0; no sentinels, no cluster"),
}
#: database -> the driver that this service uses
_DRIVERS: Final = {"sqlite": "pysqlite", "postgresql": "psycopg"}


def check_url(text: str | None, *, key: str) -> None:
    """Raise ConfigError if the URL of a setting is malformed, or names a server of another kind."""
    if not text:
        return
    schemes, remedy = _URLS[key]
    url = _parsed_url(text)
    if url and _is_cut(text, host=url.host or "", key=key):
        fault = "a character of its user or password ends the address too early"
        raise ConfigError(fault, field=key, remedy="write @ as %40, / as %2F, # as %23 and ? as %3F there")
    scheme = url and (url.get_backend_name() if key == "database_url" else url.drivername)
    if scheme not in schemes:
        fault = f"URLs of the kind {scheme!r} cannot be used here" if scheme else "this is not a URL"
        raise ConfigError(fault, field=key, remedy=remedy)
    driver = _DRIVERS.get(scheme)
    if driver is not None and url.get_driver_name() != driver:
        fault = f"the driver {url.get_driver_name()!r} cannot be used here"
        remedy = f"let the URL begin with {scheme}+{driver}://" if scheme == "postgresql" else remedy
        raise ConfigError(fault, field=key, remedy=remedy)


def _is_cut(text: str, *, host: str, key: str) -> bool:
    """Whether the client of this setting would take a part of a password for the host, and print it."""
    if key == "database_url":
        return "@" in host
    try:
        parts, port = urlsplit(text), urlsplit(text).port
        query = parts.query if parts.netloc and (port == 0 or not parts.hostname) else ""
        return parts.scheme != "unix" and "@" in f"{parts.path}{parts.fragment}{query}"
    except ValueError:  # the port is no number
        return True


def refuse_secrets(tree: Mapping[str, Any]) -> None:
    """Raise ConfigError if an address in the file has a user, password or key. tree: content of the file."""
    for variable, key in PLAIN_VARIABLES.items():
        value = tree.get(key)
        url = _parsed_url(value) if isinstance(value, str) else None  # invalid URLs are reported by `check_url`
        if url is not None and (url.password or "password" in url.query):
            message = "the file has a URL with a password, visible to everyone who can read the file"
            remedy = f"take it out of the file and set the environment variable {variable}"
            raise ConfigError(message, field=key, remedy=remedy)
    field = credentials_in(tree.get("arms"), field="arms")
    if field is not None:
        message = "the file has an address with a user, password or key, visible to everyone who can read the file"
        remedy = (
            "remove it, and send it as a header (headers_env of the arm http) or set this param by the environment, as "
            "RAGBANDIT_ARMS__NAME__PARAM"
        )
        raise ConfigError(message, field=field, remedy=remedy)


def shown_setting(path: tuple[str, ...], value: Any) -> tuple[str, object]:
    """Returns (dotted key, value) with secrets hidden."""
    key = ".".join(path)
    if key not in PLAIN_VARIABLES.values() or not isinstance(value, str):
        return without_secrets(key), shown_value(value, path=path)
    url = _parsed_url(value)
    return key, url.set(query=dict.fromkeys(url.query, HIDDEN)).render_as_string(hide_password=True)


def _parsed_url(url: str) -> Any:
    from sqlalchemy.engine import make_url  # imported here: it takes 0.2 s, and most files contain no URL
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url)
    except (ArgumentError, ValueError):  # make_url raises ValueError if the port is not a number
        return None
