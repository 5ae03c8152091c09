"""Calls through the proxy of a company: the calls that use it, their errors when it fails, and a proxy behind TLS."""

import asyncio
import socket
import ssl
import threading

import httpx
import pytest

from ragbandit import Client
from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.model_servers.failures import ServerFailed
from ragbandit.shared.model_servers.json_server import JsonServer
from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.shared.proxies import httpx_options
from ragbandit.strategies.base import Request
from ragbandit.strategies.generators.openai_generator import OpenAiGenerator
from tests.support.servers.company_proxy import CLOSED, through  # noqa: F401 - a fixture
from tests.support.servers.openai_calls import CAPITAL
from tests.support.servers.scripted_http import Scripted, ScriptedHttp
from tests.support.servers.tls_redis import OPENSSL, make_authority

URL = "http://model.example:8000/v1"


def of_model() -> RagBanditError:
    async def ask() -> None:
        generator = OpenAiGenerator("small", options=OpenAiOptions(base_url=URL, retries=0))
        try:
            await generator.complete(Request(prompt=CAPITAL, max_tokens=5))
        finally:
            await generator.close()

    with pytest.raises(RagBanditError) as caught:
        asyncio.run(ask())
    return caught.value


def of_arm() -> RagBanditError:
    async def ask() -> None:
        server = JsonServer(url=URL, section="arms.mine", what="pipeline", example="{}")
        async with server.client() as client:
            await server.post(client, {}, timeout=5.0, max_bytes=1000)

    with pytest.raises(RagBanditError) as caught:
        asyncio.run(ask())
    return caught.value


def of_client() -> RagBanditError:
    with Client(URL, retries=0) as client, pytest.raises(RagBanditError) as caught:
        client.route("Who?")
    return caught.value


CALLERS = {"model": of_model, "arm": of_arm, "client": of_client}


@pytest.mark.parametrize("status", [200, 503])
def test_headers_of_any_bytes_lose_no_reply(status):
    """A header that is not ASCII, and a type that names another character set, change neither reply nor error."""
    body = b'{"answer": "a"}'
    head = f"HTTP/1.1 {status} S\r\nx-owner: Zo\u00eb\r\ncontent-type: text/plain; charset=base64\r\n".encode()
    replied = head + b"content-length: %d\r\n\r\n" % len(body) + body

    async def ask() -> object:
        async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(replied)
            await writer.drain()
            writer.close()

        listening = await asyncio.start_server(reply, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        server = JsonServer(url=url, section="arms.mine", what="pipeline", example="{}")
        async with listening, server.client() as client:
            return await server.post(client, {}, timeout=5.0, max_bytes=1000)

    if status == 200:
        assert asyncio.run(ask()) == {"answer": "a"}
    else:
        with pytest.raises(ServerFailed, match="503"):
            asyncio.run(ask())


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("fault", ["down", "refuses", "unreached"])
def test_a_proxy_that_fails_is_named(through, caller, fault):  # noqa: F811 - the fixture
    """The error of a call names the proxy, and not its password; a proxy that refuses is not the caller's error."""
    statuses = {"refuses": 407, "unreached": 502}
    with ScriptedHttp(Scripted(status=statuses.get(fault, 200), body=b"no", headers={})) as proxy:
        address = f"http://127.0.0.1:{CLOSED}" if fault == "down" else proxy.url
        through(address)
        error = CALLERS[caller]()
    assert f"through the proxy {address}" in error.message
    assert "hunter2" not in str(error)
    assert fault == "down" or proxy.seen[0][1]["Proxy-Authorization"].startswith("Basic ")
    if isinstance(error, ServerFailed) and fault == "refuses":
        assert error.failure.kind == "denied"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """The certificate of an authority. Its folder also has the certificate of a server on 127.0.0.1."""
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.mark.skipif(OPENSSL is None, reason="there is no openssl, which makes the certificates")
def test_a_proxy_behind_tls_is_trusted_by_the_same_certificates(through, authority, monkeypatch):  # noqa: F811 - the fixture
    """HTTPS_PROXY=https://... with an authority of the company: SSL_CERT_FILE counts for the way to the proxy, too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.parent / "server.pem", authority.parent / "server.key")
    heads: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        plain, _ = listener.accept()
        with context.wrap_socket(plain, server_side=True) as connection:
            heads.append(connection.recv(65_536))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        through(f"https://127.0.0.1:{listener.getsockname()[1]}")
        with httpx.Client(**httpx_options(URL)) as client:
            assert client.get(URL).json() == {}
        thread.join(10)
    assert heads[0].startswith(b"GET http://model.example:8000/v1 ")


def test_spans_are_sent_by_the_same_rule(through, monkeypatch):  # noqa: F811 - the fixture
    """A receiver on this machine is never asked through the proxy; another one is."""
    pytest.importorskip("opentelemetry.sdk")
    from ragbandit.router.telemetry.otel import open_telemetry
    from tests.support.servers.otlp_receiver import OtlpReceiver

    def send(endpoint: str) -> None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        tracing = open_telemetry(process="service")
        with tracing.span("one"):
            pass
        tracing.close()

    proxy, receiver = OtlpReceiver(), OtlpReceiver()
    through(proxy.url)
    send(receiver.url)
    assert (len(receiver.spans), len(proxy.spans)) == (1, 0)
    send("http://receiver.example:4318")
    assert (len(receiver.spans), len(proxy.spans)) == (1, 1)
    for each in (proxy, receiver):
        each.close()
