"""Keys, roles, tenants and forms of the dashboard's pages."""

import re
import time

from ragbandit.router.storage.access.api_keys import KeyStore
from tests.support.servers.visitors import answered

PAGES = ("/ui", "/ui/arms", "/ui/decisions", "/ui/policies", "/ui/feedback", "/ui/labels", "/ui/queues")


def test_a_service_without_keys_shows_its_pages(service, visit):
    """On this machine and without keys every page is there, with links to the others."""
    browser = visit(service)
    for path in PAGES:
        text = browser.page(path)
        assert all(f'href="{other}"' in text for other in PAGES)


def test_every_reply_is_kept_to_itself(service, visit):
    """Pages, files, redirects and errors have the policy of content and are stored nowhere; scripts are files alone."""
    browser = visit(service)
    for path in (*PAGES, "/ui/static/dashboard.css", "/ui/nothing", "/ui/decisions/unknown"):
        reply = browser.http.get(path)
        headers = reply.headers
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == ("no-cache" if "/static/" in path else "no-store")
        if "text/html" in headers.get("content-type", ""):
            assert re.findall(r"<script(?! (?:defer )?src=)|\son\w+=|\sstyle=|javascript:", reply.text) == []
    assert "content-security-policy" not in browser.http.get("/health").headers


def test_a_page_asks_for_a_key(service, visit, with_keys):
    """Without a valid key a page is 401 with a challenge that makes the browser ask for one."""
    browser, key = visit(service), with_keys(service, "reader")
    for wrong in (None, ("", "rb_0123456789_" + "x" * 43), (key, "")):
        browser.http.auth = wrong
        reply = browser.http.get("/ui/decisions")
        assert reply.status_code == 401
        assert reply.headers["www-authenticate"].startswith("Basic realm=")
    browser.log_in(key)
    text = browser.page("/ui/decisions")
    assert "role reader" in text
    assert key not in text


def test_credentials_that_cannot_be_read(service, visit, with_keys):
    """Credentials that are not base64 of a name and a password are 401."""
    with_keys(service, "reader")
    browser = visit(service)
    for sent in ("Basic", "Basic !", "Basic /w==", "Basic bm9wYXNzd29yZA==", "Digest x"):
        assert browser.http.get("/ui", headers={"authorization": sent}).status_code == 401, sent


def test_a_revoked_key_opens_no_page(service, visit, with_keys):
    """A page is 401 once its key is revoked."""
    browser, key = visit(service), with_keys(service, "operator")
    with_keys(service, "admin")
    browser.log_in(key)
    browser.page("/ui")
    KeyStore(service.router.database).revoke(key.split("_")[1], actor="cli:test", now=time.time())
    service.app.state.gate.ring.known = None
    browser.page("/ui", status=401)


def test_basic_is_for_pages(service, visit, with_keys):
    """A key as a password opens no endpoint of the API; a key in the usual header opens pages."""
    browser, key = visit(service), with_keys(service, "reader")
    browser.log_in(key)
    browser.page("/v1/status", status=401)
    assert service.http.get("/ui", headers={"authorization": f"Bearer {key}"}).status_code == 200


def test_readers_see_and_operators_act(service, visit, with_keys):
    """A reader's pages have no verbs, and sending one is refused; an operator's verb is done and in the audit log."""
    reader, operator = visit(service), visit(service)
    named = service.http.post("/v1/route", json={"question": "Q?"}).json()["decision_id"]
    reader.log_in(with_keys(service, "reader"))
    operator.log_in(with_keys(service, "operator"))
    assert "Activate the kill switch" not in reader.page("/ui/policies")
    assert reader.send("/ui/switch", on="/ui/decisions", to="champion", reason="x").status_code == 403
    assert reader.send(f"/ui/decisions/{named}/cancel", on="/ui/decisions").status_code == 403
    assert "Activate the kill switch" in operator.page("/ui/policies")
    assert operator.send("/ui/switch", on="/ui/policies", to="champion", reason="storm").status_code == 303
    text = operator.page("/ui/policies")
    assert "The kill switch is active" in text
    assert "storm" in text
    assert operator.send("/ui/switch", on="/ui/policies", to="off", reason="over").status_code == 303
    assert "The kill switch is active" not in operator.page("/ui/policies")


def test_a_form_of_another_page_does_nothing(service, visit, with_keys):
    """From another site, another port, and where no browser says from where, a form is refused; open services too."""
    form, visitor = {"to": "champion", "reason": "x"}, visit(service)

    def check_refused():
        for told in (
            {},
            {"origin": "https://evil.example"},
            {"origin": f"{service.url}1"},
            {"sec-fetch-site": "same-site"},
        ):
            assert visitor.http.post("/ui/switch", data=form, headers=told).status_code == 403

    check_refused()
    visitor.log_in(with_keys(service, "operator"))
    check_refused()
    assert visitor.http.post("/ui/switch", json=form, headers={"origin": service.url}).status_code == 422
    assert "The kill switch is active" not in visitor.page("/ui/policies")


def test_a_tenants_key_has_its_decisions_alone(service, visit, with_keys):
    """A key of one tenant sees no decision of another tenant, and no page that shows all tenants."""
    mine = answered(service, "Ours?", tenant="acme")
    theirs = answered(service, "Theirs?", tenant="globex")
    browser = visit(service)
    browser.log_in(with_keys(service, "operator", tenant="acme"))
    text = browser.page("/ui/decisions")
    assert "Ours?" in text
    assert "Theirs?" not in text
    assert 'href="/ui/queues"' not in text
    assert "Ours?" in browser.page(f"/ui/decisions/{mine}")
    unknown = browser.page("/ui/decisions/never-made", status=404)
    assert browser.page(f"/ui/decisions/{theirs}", status=404) == unknown
    assert browser.http.get(f"/ui/decisions?id={theirs}").status_code == 404
    for path in ("/ui", "/ui/arms", "/ui/policies", "/ui/policies/v1", "/ui/feedback", "/ui/queues"):
        assert 'href="/ui/decisions"' in browser.page(path, status=403)
    assert browser.send("/ui/policies/v1/promote", on="/ui/decisions", revision="1").status_code == 403
