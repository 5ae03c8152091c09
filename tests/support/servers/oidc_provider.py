"""A small provider of OpenID Connect: discovery, keys, authorize, token; what it says can be changed for a test."""

import base64
import hashlib
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT, SECRET = "ragbandit", "client-secret-0123456789"


class OidcProvider:
    """`claims` are of whoever signs in; `change(claims)` may spoil them; `key` signs, `published` are given out."""

    def __init__(self, *, host="127.0.0.1") -> None:
        self.claims = {"sub": "alice", "groups": ["rag-readers"]}
        self.change = lambda claims: claims
        self.key = new_key("k1")
        self.published = [self.key]
        self.redirect = None
        self.codes: dict[str, dict[str, str]] = {}
        self.key_reads = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.issuer = f"http://{host}:{self._server.server_address[1]}/realm"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def token(self, asked) -> str:
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": asked["nonce"]}
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, self.change(claims | self.claims), self.key)

    def authorized(self, asked) -> str:
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        back = urlencode({"code": code, "state": asked["state"], "iss": self.issuer})
        return f"{asked['redirect_uri']}?{back}"

    def exchanged(self, form, authorization) -> tuple[int, dict]:
        named = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        if named != f"{CLIENT}:{SECRET}":
            return 401, {"error": "invalid_client"}
        asked = self.codes.pop(form["code"], None)  # a code is good once
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        if (
            asked is None
            or asked["redirect_uri"] != form["redirect_uri"]
            or base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != asked["code_challenge"]
        ):
            return 400, {"error": "invalid_grant"}
        return 200, {"access_token": "x", "token_type": "Bearer", "id_token": self.token(asked)}

    def _handler(provider):  # noqa: N805 - the handler has a self of its own
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                parts = urlsplit(self.path)
                path, issuer = parts.path.removeprefix("/realm"), provider.issuer
                if path == "/.well-known/openid-configuration":
                    ends = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
                    self._json(200, {"issuer": issuer} | {name: f"{issuer}/{end}" for name, end in ends.items()})
                elif path == "/keys":
                    provider.key_reads += 1
                    self._json(200, {"keys": [key.as_dict(private=False) for key in provider.published]})
                elif path == "/authorize":
                    self.send_response(302)
                    self.send_header("location", provider.authorized(dict(parse_qsl(parts.query))))
                    self.send_header("content-length", "0")
                    self.end_headers()
                else:
                    self._json(404, {})

            def do_POST(self):
                form = dict(parse_qsl(self.rfile.read(int(self.headers["content-length"])).decode()))
                self._json(*provider.exchanged(form, unquote(self.headers.get("authorization", ""))))

            def _json(self, status, value):
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        return Handler


def new_key(kid):
    """A key of its own. 2048 bits: the shortest that the library takes without a warning."""
    return RSAKey.generate_key(2048, parameters={"kid": kid, "use": "sig"})
