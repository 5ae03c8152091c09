"""This machine's certificates, read once for all HTTP clients of a test process, in place of 20 ms each."""

import functools
import importlib
import os
import ssl
from typing import Any, Final

#: httpx, and what newer clients of OpenAI use in its place
_TRANSPORTS: Final = ("httpx._transports.default", "httpx2._transports.default")


def share_certificates() -> None:
    """From now on clients without explicit certificates share one SSL context of their library."""
    for name in _TRANSPORTS:
        try:
            _share(importlib.import_module(name))
        except ModuleNotFoundError:  # the clients that are installed do not use it
            continue


def _share(transports: Any) -> None:
    made = getattr(transports, "create_ssl_context", None)
    if made is None:  # another version: its clients read for themselves
        return

    @functools.cache
    def shared(_file: str | None, _folder: str | None, *, trust_env: bool) -> ssl.SSLContext:
        return made(trust_env=trust_env)

    def create_ssl_context(*, verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is True and cert is None:
            return shared(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"), trust_env=trust_env)
        return made(verify=verify, cert=cert, trust_env=trust_env)

    transports.create_ssl_context = create_ssl_context
