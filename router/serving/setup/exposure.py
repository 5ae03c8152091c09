"""Exposure: who can reach the service, and whether it may start without API keys."""

import ipaddress

from ragbandit.router.config.settings import Settings
from ragbandit.router.serving.setup.bootstrap import open_database
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.shared.errors import ConfigError

#: the command that makes the first key
FIRST_KEY = "ragbandit keys create --role admin --name NAME"


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine reach what listens on this address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may be of any address
        return False


def check_exposure(settings: Settings, *, now: float) -> None:
    """Refuse to listen where other machines reach the service while it has no key and
    nobody signs in. Raises ConfigError, StoreError.
    """
    server = settings.server
    hosts = {"server.host": server.host} | (
        {} if server.admin_port is None else {"server.admin_host": server.admin_host}
    )
    exposed = {field: host for field, host in hosts.items() if not is_loopback(host)}
    if not exposed or server.open or server.oidc is not None:
        return
    field, host = next(iter(exposed.items()))
    database = open_database(settings)
    try:
        if KeyStore(database).in_force(now=now).unrevoked:
            return
    finally:
        database.close()
    raise ConfigError(
        f"the service would listen on {host or 'every address'} without API keys; whoever reaches it could read every "
        "question and teach the policy",
        field=field,
        remedy=f"make a key first: {FIRST_KEY}; or listen on 127.0.0.1. docs/security.md says more",
    )
