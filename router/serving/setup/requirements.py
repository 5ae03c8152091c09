"""Requirements of a configuration: packages and an address, looked for without loading anything.

`validate` uses this too, and is to be quick: no database engine, no model library, no Redis is imported.
"""

import importlib.util
import socket
from pathlib import Path

from ragbandit.router.config.oidc import client_secret
from ragbandit.router.config.settings import ServerSettings, Settings
from ragbandit.shared.errors import ConfigError, missing_package, require_service
from ragbandit.shared.files.folders import check_root


def has_store(settings: Settings) -> bool:
    """Whether there may be a store: where there is none yet, no database engine need be loaded."""
    return settings.database_url is not None or Path(settings.database.removeprefix("sqlite:///")).exists()


def check_packages(settings: Settings) -> None:
    """Refuse a database, Redis, workers, a sign-in or a folder's URL whose package is missing. Raises ConfigError.

    None of them is imported.
    """
    if settings.database_url is not None:
        from sqlalchemy.engine import make_url

        url = make_url(settings.database_url)
        if url.get_backend_name() == "postgresql" and importlib.util.find_spec(url.get_driver_name()) is None:
            raise missing_package(url.get_driver_name(), extra="postgres", field="database_url")
    if settings.telemetry.enabled and not _has_telemetry():
        raise missing_package("opentelemetry-sdk", extra="otel", field="telemetry.enabled")
    check_sign_in(settings.server)
    for field in ("snapshots", "archive"):
        check_root(getattr(settings, field) or "", field=field)
    if settings.redis_url is not None and importlib.util.find_spec("redis") is None:
        raise missing_package("redis", extra="service", field="redis_url")
    if settings.worker_arms:
        require_service()


def check_sign_in(server: ServerSettings) -> None:
    """Refuse a sign-in of people whose secret or package is not there. Raises ConfigError."""
    if server.oidc is None:
        return
    client_secret(server.oidc)
    if importlib.util.find_spec("joserfc") is None:
        raise missing_package("joserfc", extra="oidc", field="server.oidc")


def _has_telemetry() -> bool:
    has_parts = importlib.util.find_spec("opentelemetry") is not None  # a part of it may come with FastAPI
    return has_parts and importlib.util.find_spec("opentelemetry.sdk") is not None


def check_port(server: ServerSettings) -> None:
    """Refuse addresses that another process listens on, or that this machine does not have. Raises ConfigError."""
    _check(server.host, server.port, field="server.port")
    if server.admin_port is not None:
        _check(server.admin_host, server.admin_port, field="server.admin_port")


def _check(host: str, port: int, *, field: str) -> None:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise ConfigError(
            f"{host}:{port} cannot be used: {error.strerror}",
            field=field,
            remedy="choose another host or port, or stop what listens there",
        ) from error
