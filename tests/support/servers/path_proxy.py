"""A reverse proxy that serves a service under a path, as hosts with several programs do."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import httpx

_PASSED_ON = ("content-type", "location", "www-authenticate", "content-security-policy")


class PathProxy:
    """Passes requests under `prefix` on; everything else is a 404. strips: without the prefix, as most proxies do.

    headers: what it adds to each request.
    """

    def __init__(self, url: str, *, prefix: str = "/rag", strips: bool = True, **headers: str) -> None:
        self.prefix, self.link = prefix, httpx.Client(base_url=url, timeout=30)
        self._strips, self._added = strips, {name.replace("_", "-"): value for name, value in headers.items()}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> "PathProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.link.close()

    def _handler(proxy):  # noqa: N805 - the handler has a self of its own
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                if not urlsplit(self.path).path.startswith(f"{proxy.prefix}/"):
                    self.send_error(404)
                    return
                path = self.path.removeprefix(proxy.prefix) if proxy._strips else self.path
                heads = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
                reply = proxy.link.request(self.command, path, content=body, headers=heads | proxy._added)
                self.send_response(reply.status_code)
                for name in _PASSED_ON:
                    if name in reply.headers:
                        self.send_header(name, reply.headers[name])
                self.send_header("content-length", str(len(reply.content)))
                self.end_headers()
                self.wfile.write(reply.content)

            do_GET = do_POST  # noqa: N815 - as the server calls it

            def log_message(self, *_):
                pass

        return Handler
