"""The service under a path of a proxy: every link, form, redirect and URL in replies leads back to it."""

import re
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from ragbandit.router.config.settings import Settings
from tests.additions.dashboard.test_pages import PAGES, Tags
from tests.support.cases import every_case
from tests.support.servers.path_proxy import PathProxy
from tests.support.servers.visitors import answered

#: name -> (settings of the server, what the proxy does)
WAYS = {
    "header": ({}, {"x_forwarded_prefix": "/rag"}),
    "header of trusted proxies": ({"trusted_proxies": ["127.0.0.0/8"]}, {"x_forwarded_prefix": "/rag/"}),
    "two proxies": ({}, {"prefix": "/out/rag", "x_forwarded_prefix": "/out, /rag"}),
    "setting": ({"root_path": "/rag"}, {}),
    "setting, prefix left in the path": ({"root_path": "/rag"}, {"strips": False}),
    "encoded, with a user's name": (
        {},
        {"prefix": "/user/a%40b:1", "x_forwarded_prefix": "/user/a%40b:1"},
    ),
    "setting, encoded, left in the path": ({"root_path": "/user/a%40b"}, {"prefix": "/user/a%40b", "strips": False}),
    "path like one of the service": ({"root_path": "/ui"}, {"prefix": "/ui"}),
}


def lost_links(http: httpx.Client, prefix: str) -> list[str]:
    """Links, assets and forms of all pages that do not lead to a page, from each page on that a link leads to."""
    waiting, seen, lost = [f"{prefix}{page}" for page in (*PAGES, "/docs", "/ui/none")], set(), []
    while waiting:
        page = waiting.pop()
        reply = http.get(page)
        if reply.status_code != 200 and not page.endswith("/none"):
            lost.append(f"{page}: {reply.status_code}")
        if "html" not in reply.headers.get("content-type", ""):
            continue
        for tag, given in Tags(reply.text).tags:
            link = given.get("href") or given.get("src") or given.get("action") or "#"
            target = urlsplit(urljoin(page, link))
            if link.startswith(("#", "data:", "http")) or (tag, target.path) in seen:
                continue
            seen.add((tag, target.path))
            if tag == "form" and given["method"] == "post":
                lost += [] if http.post(target.path).status_code == 403 else [f"form {target.path}"]
            else:
                waiting.append(target.path)
    assert {tag for tag, _ in seen} >= {"a", "link", "script", "form"}
    return lost


@pytest.mark.parametrize("way", WAYS)
def test_every_link_of_every_page_keeps_the_path(serve, way):
    """Links, assets, forms and redirects of all pages, /docs and OpenAPI's server lead back through the proxy."""
    settings, proxied = WAYS[way]
    service = serve(server=settings)
    decision = answered(service)
    with PathProxy(service.url, **proxied) as proxy, httpx.Client(base_url=proxy.url, timeout=30) as http:
        prefix = proxy.prefix
        assert lost_links(http, prefix) == []
        assert http.get(f"{prefix}/", headers={"accept": "text/html"}).headers["location"] == f"{prefix}/ui"
        assert http.get(f"{prefix}/").json()["openapi"] == f"{prefix}/openapi.json"
        assert http.get(f"{prefix}/openapi.json").json()["servers"] == [{"url": prefix}]
        found = http.get(f"{prefix}/ui/decisions", params={"id": decision})
        assert found.headers["location"] == f"{prefix}/ui/decisions/{decision}"
        assert re.search(rf'"?url"?: ?[\'"]{prefix}/openapi.json', http.get(f"{prefix}/docs").text)
        form = {"to": "champion", "reason": "storm"}
        heads = {"sec-fetch-site": "same-origin", "origin": "https://rag.example"}  # this proxy sends another Host
        sent = http.post(f"{prefix}/ui/switch", data=form, headers=heads)
        assert (sent.status_code, sent.headers["location"]) == (303, f"{prefix}/ui/policies")
    assert "servers" not in service.http.get("/openapi.json").json() or settings.get("root_path")


def test_a_prefix_that_is_no_path_or_comes_from_elsewhere_is_ignored(serve):
    """A header cannot put another host, a script or dots into the links, and only proxies' headers count."""
    service = serve()
    wrong = ("//evil.example", "/a//evil.example", "https://evil.example", '/"><script>', "/..", "/a/../b", "rag", "/é")
    wrong += ("/%2e%2e", "/a%2F..", "/a%5Cb", "/%0d%0aset-cookie:a", "/a%", "/a&b", "/a'b", "/a\\b")
    with every_case() as each:
        for prefix in (*wrong, "/" + "a" * 200, "/rag, /.."):
            with each(prefix):
                headers = {"x-forwarded-prefix": prefix.encode()}
                assert 'href="/ui/arms"' in service.http.get("/ui", headers=headers).text
                assert service.http.get("/", headers=headers | {"accept": "text/html"}).headers["location"] == "/ui"


def test_a_prefix_from_an_address_that_is_not_trusted_is_ignored(serve, monkeypatch):
    """FORWARDED_ALLOW_IPS and server.trusted_proxies say whose X-Forwarded-Prefix counts."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "10.1.2.3")
    headers = {"x-forwarded-prefix": "/rag"}
    far = serve(server={"trusted_proxies": ["10.0.0.0/8"]})
    assert 'href="/ui/arms"' in far.http.get("/ui", headers=headers).text
    near = serve(server={"trusted_proxies": ["127.0.0.1"]})
    assert 'href="/rag/ui/arms"' in near.http.get("/ui", headers=headers).text


def test_a_root_path_that_is_no_path_is_refused():
    """The setting takes only a path; a last slash is dropped."""
    for wrong in ("rag", "//rag", "/rag?x", "/a/../b", "/a/%2e%2e", "https://example.org/rag", "/" + "a" * 200):
        with pytest.raises(ValueError, match=r"root_path[\s\S]*(not a path as /rag|at most 200)"):
            Settings(server={"root_path": wrong})
    assert [Settings(server={"root_path": path}).server.root_path for path in ("/rag/", "/")] == ["/rag", ""]
