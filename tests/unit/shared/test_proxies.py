"""Which outgoing calls go through a proxy, and by which certificates."""

import socket

import httpx
import pytest

from ragbandit import Client
from ragbandit.shared import proxies
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.model_servers.json_server import JsonServer
from ragbandit.shared.model_servers.openai_client import connect
from ragbandit.shared.proxies import certificates, httpx_options, proxy_of

PROXY = "http://proxy.example:3128"
VARIABLES = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
)


@pytest.fixture(autouse=True)
def environ(monkeypatch):
    """A function that sets these variables; all others about proxies and certificates are gone."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)

    def put(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.mark.parametrize(
    ("variables", "url", "proxy"),
    [
        ({}, "http://model.example/v1", None),
        ({"HTTP_PROXY": PROXY}, "http://model.example/v1", PROXY),
        ({"HTTP_PROXY": PROXY}, "https://model.example/v1", None),
        ({"HTTPS_PROXY": PROXY}, "https://model.example/v1", PROXY),
        ({"https_proxy": "proxy.example:3128"}, "https://model.example/v1", PROXY),
        ({"ALL_PROXY": PROXY}, "https://model.example/v1", PROXY),
        ({"ALL_PROXY": "socks5://proxy.example:1080"}, "https://model.example/v1", None),
        ({"HTTP_PROXY": ""}, "http://model.example/v1", None),
        ({"HTTP_PROXY": f" {PROXY}\n"}, "http://model.example/v1", PROXY),
        ({"HTTP_PROXY": f'"{PROXY}"'}, "http://model.example/v1", PROXY),
        (
            {"HTTP_PROXY": "http://me:p@w@proxy.example:3128/"},
            "http://model.example",
            "http://me:p@w@proxy.example:3128/",
        ),
        ({"http_proxy": PROXY, "HTTP_PROXY": "http://other.example:1"}, "http://model.example/v1", PROXY),
        ({"http_proxy": "", "HTTP_PROXY": PROXY}, "http://model.example/v1", None),
    ],
)
def test_the_proxy_of_a_scheme(environ, variables, url, proxy):
    """The variable of the scheme goes before ALL_PROXY; a proxy of SOCKS is not used."""
    environ(**variables)
    assert proxy_of(url) == proxy


#: proxies whose password cuts the address, and one of another protocol
CUT = (
    "http://me:hunter2/w@proxy.example:3128",
    "http://me:12#hunter2@proxy.example:3128",
    "http://me:12?hunter2@proxy.example:3128",
    "http://me:12/hunter2@proxy.example:3128",
    "ftp://proxy.example:3128",
)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("value", ["http://", "http://proxy.example:port", "http://[fd00::1", "//proxy.example", *CUT])
def test_a_proxy_that_is_no_url_is_refused(environ, name, value):
    """A variable from which no client could be made is named, in place of a traceback, but only if it is needed."""
    environ(**{name: value}, NO_PROXY="model.example")
    assert proxy_of("http://model.example/v1") is None
    with pytest.raises(ConfigError) as caught:
        Client("http://other.example:8000")
    assert (caught.value.field, "hunter2" in str(caught.value)) == (name.upper(), False)


def test_a_proxy_that_is_not_used_is_named(environ, caplog):
    """A proxy of SOCKS is not used; the log names it once, without its password."""
    proxies._warn_of.cache_clear()
    environ(ALL_PROXY="socks5://me:hunter2@proxy.example:1080")
    assert [proxy_of("http://model.example"), proxy_of("http://model.example")] == [None, None]
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "a proxy of the kind socks5 cannot be used"
    ]
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("listed", "url"),
    [
        ("model.example", "http://model.example/v1"),
        ("example", "http://model.example/v1"),
        (".example", "http://model.example/v1"),
        ("*.example", "http://a.model.example/v1"),
        ("MODEL.example.", "http://model.EXAMPLE/v1"),
        ("localhost, model.example:8000", "http://model.example:8000/v1"),
        ("model.example:443", "https://model.example/v1"),
        ("https://model.example/", "https://model.example/v1"),
        ("10.1.2.3", "http://10.1.2.3:8000/v1"),
        ("10.1.2.3:8000", "http://10.1.2.3:8000/v1"),
        ("10.1.*", "http://10.1.2.3:8000/v1"),
        ("10.0.0.0/8:8000", "http://10.1.2.3:8000/v1"),
        ("[fd00::/8]:8000", "http://[fd00::7]:8000/v1"),
        ("10.0.0.0/8", "http://10.1.2.3:8000/v1"),
        ("10.1.2.3/8", "http://10.9.9.9:8000/v1"),
        ("fd00::/8", "http://[fd00::7]:8000/v1"),
        ("10.0.0.0/8,fd00::/8", "http://[fd00::7]:8000/v1"),
        ("fd00::7", "http://[fd00:0::7]:8000/v1"),
        ("[fd00::7]", "http://[fd00::7]:8000/v1"),
        ("[fd00::7]:8000", "http://[fd00::7]:8000/v1"),
        ("10.0.0.0/8", "http://[::ffff:10.1.2.3]:8000/v1"),
        ("10.0.0.0/255.0.0.0", "http://10.1.2.3:8000/v1"),
        ('"localhost,10.0.0.0/8"', "http://10.1.2.3:8000/v1"),
        ("'localhost, model.example'", "http://model.example/v1"),
        ("*-model.example", "http://a-model.example/v1"),
        ("*", "http://model.example/v1"),
        ("other.example model.example", "http://model.example/v1"),
    ],
)
def test_what_is_asked_without_the_proxy(environ, listed, url):
    """Names with all below them, addresses, networks of both kinds, ports, patterns and * are asked directly."""
    environ(ALL_PROXY=PROXY, NO_PROXY=listed)
    assert proxy_of(url) is None


@pytest.mark.parametrize(
    ("listed", "url"),
    [
        ("del.example", "http://model.example/v1"),
        ("*-model.example", "http://model.example/v1"),
        ("model.example:8000", "http://model.example/v1"),
        ("a.model.example", "http://model.example/v1"),
        ("10.0.0.0/8", "http://11.1.2.3/v1"),
        ("10.0.0.0/8", "http://ten.example/v1"),
        ("10.0.0.0/8:8000", "http://10.1.2.3/v1"),
        ("[fd00::/8]:8000", "http://[fd00::7]/v1"),
        ("fd00::/8", "http://[fe80::7]/v1"),
        ("10.1.2.3:8000", "http://10.1.2.3/v1"),
        ("2.3", "http://10.1.2.3/v1"),
        ("10.0.0.0/99,fd00::/x,:,/,.,[", "http://10.1.2.3/v1"),
        (",, ,", "http://model.example/v1"),
    ],
)
def test_what_is_asked_through_the_proxy(environ, listed, url):
    """Other names, ports and networks, and entries that cannot be read, leave the proxy in its place."""
    environ(ALL_PROXY=PROXY, NO_PROXY=listed)
    assert proxy_of(url) == PROXY


@pytest.mark.parametrize("url", ["http://collector:4318x", "http://[::1", "http://h:99999"])
def test_an_address_that_is_none_is_left_to_its_client(environ, url):
    """No proxy is named for an address that cannot be parsed, and nothing is raised."""
    environ(HTTP_PROXY=PROXY)
    assert proxy_of(url) is None


@pytest.mark.parametrize(
    "host", ["localhost", "ip6-localhost", "a.localhost", "127.0.0.1", "127.8.9.1", "[::1]", "0.0.0.0", "hostname"]
)
def test_this_machine_is_never_asked_through_a_proxy(environ, host):
    """Loopback, in any form, and the name of this machine need no entry in NO_PROXY."""
    environ(HTTP_PROXY=PROXY)
    host = socket.gethostname() if host == "hostname" else host
    assert proxy_of(f"http://{host}:8000/v1") is None


def test_every_client_can_be_made_behind_a_proxy(environ):
    """A network in NO_PROXY, which httpx cannot read, ends no client of ours."""
    environ(ALL_PROXY=PROXY, NO_PROXY="localhost,10.0.0.0/8,fd00::/8")
    httpx.Client(**httpx_options("http://10.1.2.3/v1")).close()
    JsonServer(url="http://[fd00::7]/v1", section="s", what="w", example="{}").client()
    Client("http://10.1.2.3:8000").close()
    assert connect(base_url="http://10.1.2.3/v1", key=None, headers={})._proxy is None
    assert connect(base_url="http://model.example/v1", key=None, headers={})._proxy == PROXY


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_the_certificates_of_the_environment(environ, name, tmp_path):
    """A bundle that the operator names is used in place of certifi's, by each of the variables; a folder works too."""
    environ(**{name: str(tmp_path / "missing.pem")})
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        certificates()
    assert caught.value.field == name
    environ(**{"SSL_CERT_DIR": "", name: ""})
    assert certificates().cert_store_stats()["x509_ca"] > 50
    environ(REQUESTS_CA_BUNDLE=str(tmp_path))
    assert certificates().cert_store_stats()["x509_ca"] == 0
    environ(SSL_CERT_DIR=f"{tmp_path / 'missing'}:{tmp_path}")
    assert certificates().cert_store_stats()["x509_ca"] == 0


def test_a_client_without_certificates_trusts_nobody():
    """The context of a client for an address without TLS has no authority, and checks the name."""
    context = httpx_options("http://model.example")["verify"]
    assert (context.check_hostname, context.cert_store_stats()["x509_ca"]) == (True, 0)
