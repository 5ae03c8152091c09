"""This machine's certificates, read once for all HTTP clients of a test process, in place of 20 ms each."""

import functools
import os
import ssl
from typing import Any

import httpx._transports.default as transports


def share_certificates() -> None:
    """From now on clients without explicit certificates share one SSL context."""
    made = getattr(transports, "create_ssl_context", None)
    if made is None:  # another httpx: its clients read for themselves
        return

    @functools.cache
    def shared(_file: str | None, _folder: str | None, *, trust_env: bool) -> ssl.SSLContext:
        return made(trust_env=trust_env)

    def create_ssl_context(*, verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is True and cert is None:
            return shared(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"), trust_env=trust_env)
        return made(verify=verify, cert=cert, trust_env=trust_env)

    transports.create_ssl_context = create_ssl_context
