"""Variables that name the proxy of a company."""

import pytest

#: a port of this machine at which nobody listens
CLOSED = 9


@pytest.fixture(autouse=True)
def through(monkeypatch):
    """A function that makes an address the proxy, with a password; before, no variable names one."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        for each in (name, name.lower()):
            monkeypatch.delenv(each, raising=False)

    def put(address: str) -> None:
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, address.replace("://", "://me:hunter2@"))

    return put
