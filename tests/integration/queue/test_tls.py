"""A Redis that is reached by TLS, with a certificate of an authority of one's own."""

import asyncio

import pytest

from ragbandit.router.api.security.rate_limiter import RateLimiter
from ragbandit.router.config.loading import load
from ragbandit.router.queue.jobs import RedisJobs, connect_redis
from ragbandit.shared.errors import ConfigError, QueueError
from ragbandit.shared.types import Caller
from tests.support.servers.tls_redis import OPENSSL, by_server, by_terminator, make_authority
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="there is no openssl, which makes the certificates")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """The file with the certificate of the authority."""
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(params=["server", "terminator"])
def port(request, authority, own_redis):
    """The port of a redis-server that was built with TLS, and of a terminator in front of one that was not."""
    if request.param == "terminator":
        with by_terminator(own_redis[0].socket, authority.parent) as port:
            yield port
        return
    with by_server(authority.parent) as port:
        if port is None:
            pytest.skip("no redis-server with TLS is on the PATH: apt-get install redis-server")
        yield port


def jobs_of(url: str) -> RedisJobs:
    """Wake-ups through a Redis whose address an operator has written."""
    settings = load(environ={"REDIS_URL": url}).settings
    return RedisJobs(connect_redis(settings.redis, timeout_s=5.0))


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_a_redis_with_an_authority_of_its_own(port, authority, scheme):
    """All commands and notifications pass over TLS if the URL names the authority."""
    jobs = jobs_of(f"{scheme}://127.0.0.1:{port}/0?ssl_ca_certs={authority}&ssl_cert_reqs=CERT_REQUIRED")
    heard: list[str] = []
    listener = jobs.listen(heard.append)
    try:
        jobs.ping()
        jobs.enqueue_learn()
        assert jobs.take_wake_up("learn", timeout_s=5.0)
        until(lambda: jobs.publish("snapshot") or "snapshot" in heard)
    finally:
        listener.close()
        jobs.close()


def test_the_authority_may_stand_in_the_environment(port, authority, monkeypatch):
    """SSL_CERT_FILE names the authority for Redis, too."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    jobs_of(f"rediss://127.0.0.1:{port}/0").ping()


def test_a_certificate_of_an_unknown_authority_is_named(port, monkeypatch):
    """Without the authority no command is sent, and the remedy says where to name it; ssl_cert_reqs=none trusts all."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(QueueError, match="certificate verify failed") as caught:
        jobs_of(f"rediss://127.0.0.1:{port}/0").ping()
    assert "ssl_ca_certs=FILE" in str(caught.value.remedy)
    jobs_of(f"rediss://127.0.0.1:{port}/0?ssl_cert_reqs=CERT_NONE").ping()


@pytest.mark.parametrize("option", ["ssl=true", "ssl_cert_reqs=never", "socket_timeout=long", "protocol=9"])
def test_an_option_that_redis_py_does_not_have_is_refused(option):
    """A wrong option behind the ? of REDIS_URL is an error of the configuration, before anything connects."""
    with pytest.raises(ConfigError, match="an option of the URL cannot be used") as caught:
        jobs_of(f"rediss://127.0.0.1:1/0?{option}")
    assert caught.value.field == "redis_url"


def test_rate_limits_are_counted_over_tls(port, authority):
    """The limits of all processes are counted in this Redis, too."""

    async def counted() -> tuple[bool, int]:
        limiter = RateLimiter(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={authority}", rates={"default": "5/minute"})
        allowances = [await limiter.take(Caller(role="app", key="k")) for _ in range(3)]
        await limiter.close()
        return limiter.is_lost, allowances[-1].remaining

    assert asyncio.run(counted()) == (False, 2)
