"""Login, roles, tenants and forms of the dashboard's pages."""

import re
import time

import httpx

from ragbandit.router.storage.access.api_keys import KeyStore
from tests.integration.api.ui.conftest import answered

PAGES = ("/ui", "/ui/arms", "/ui/decisions", "/ui/policies", "/ui/feedback", "/ui/labels", "/ui/queues")


def test_a_service_without_keys_shows_its_pages(service, visit):
    """On this machine and without keys there is no login: every page is there, with links to the others."""
    browser = visit(service)
    for path in PAGES:
        text = browser.page(path)
        assert all(f'href="{other}"' in text for other in PAGES)
        assert "Log out" not in text
    assert browser.http.get("/ui/login").headers["location"] == "/ui"


def test_every_reply_is_kept_to_itself(service, visit):
    """Pages, files, redirects and errors have the policy of content and are stored nowhere; scripts are files alone."""
    browser = visit(service)
    for path in (*PAGES, "/ui/static/dashboard.css", "/ui/login", "/ui/nothing", "/ui/decisions/unknown"):
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


def test_a_key_logs_in_and_out(service, visit, with_keys):
    """Without a session a page leads to the login and from there back; the cookie is kept from scripts and sites."""
    browser, key = visit(service), with_keys(service, "reader")
    asked = browser.http.get("/ui/decisions?arm=single_step")
    assert asked.status_code == 303
    assert asked.headers["location"] == "/ui/login?next=/ui/decisions%3Farm%3Dsingle_step"
    wrong = browser.log_in("rb_0123456789_" + "x" * 43)
    assert wrong.status_code == 401
    assert "not valid" in wrong.text
    done = browser.log_in(key, next_page="/ui/decisions?arm=single_step")
    assert done.headers["location"] == "/ui/decisions?arm=single_step"
    cookie = done.headers["set-cookie"].lower()
    assert all(part in cookie for part in ("httponly", "samesite=strict", "path=/ui", "max-age=43"))
    assert key not in done.headers["set-cookie"]
    assert "Log out" in browser.page("/ui/decisions")
    kept, other = dict(browser.http.cookies), visit(service)
    time.sleep(1.1)  # the time in the cookie of the second login differs
    other.log_in(key)
    assert browser.send("/ui/logout", on="/ui").status_code == 303
    assert browser.http.get("/ui").status_code == 303
    assert httpx.get(f"{service.url}/ui/decisions", cookies=kept).status_code == 303  # a copy of the cookie
    assert other.http.get("/ui/decisions").status_code == 200


def test_the_cookie_is_secure_under_https(service, visit, with_keys):
    """Behind a proxy that speaks TLS the cookie goes over TLS alone."""
    browser, key = visit(service), with_keys(service, "reader")
    browser.http.headers["x-forwarded-proto"] = "https"
    assert "; secure" in browser.log_in(key).headers["set-cookie"].lower()


def test_a_login_leads_to_no_other_site(service, visit, with_keys):
    """After a login the browser goes to a page of ours, whatever the link said."""
    key = with_keys(service, "reader")
    for way in ("//evil.example", "https://evil.example", "/ui//evil", "/uix", "\\evil"):
        assert visit(service).log_in(key, next_page=way).headers["location"] == "/ui", way


def test_a_revoked_key_ends_its_sessions(service, visit, with_keys):
    """A session ends with its key, and a changed cookie is invalid."""
    browser, key = visit(service), with_keys(service, "operator")
    with_keys(service, "admin")
    browser.log_in(key)
    assert browser.http.get("/ui").status_code == 200
    session = browser.http.cookies["ragbandit_session"]
    named, until, signed = session.split(".")
    for forged in (f"{named}.{int(until) + 9999}.{signed}", f"{named}.{until}.{'0' * 64}", "x", "a.b.c"):
        reply = visit(service).http.get("/ui", headers={"cookie": f"ragbandit_session={forged}"})
        assert reply.status_code == 303
    KeyStore(service.router.database).revoke(named, actor="cli:test", now=time.time())
    service.app.state.gate.ring.known = None
    assert browser.http.get("/ui").status_code == 303


def test_a_session_is_good_for_pages_alone(service, visit, with_keys):
    """The cookie opens no endpoint of the API; a key in the header opens pages."""
    browser, key = visit(service), with_keys(service, "reader")
    browser.log_in(key)
    session = f"ragbandit_session={browser.http.cookies['ragbandit_session']}"
    assert service.http.get("/v1/status", headers={"cookie": session}).status_code == 401
    assert service.http.get("/ui", headers={"authorization": f"Bearer {key}"}).status_code == 200


def test_readers_see_and_operators_act(service, visit, with_keys):
    """A reader's pages have no verbs, and sending one is refused; an operator's verb is done and in the audit log."""
    reader, operator = visit(service), visit(service)
    named = service.http.post("/v1/route", json={"question": "Q?"}).json()["decision_id"]
    reader.log_in(with_keys(service, "reader"))
    operator.log_in(with_keys(service, "operator"))
    assert "Activate the kill switch" not in reader.page("/ui/policies")
    assert reader.send("/ui/switch", on="/ui", to="champion", reason="x").status_code == 403
    assert reader.send(f"/ui/decisions/{named}/cancel", on="/ui").status_code == 403
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
            assert visitor.http.post("/ui/logout", headers=told).status_code == 403

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
    assert browser.log_in(with_keys(service, "operator", tenant="acme")).headers["location"] == "/ui/decisions"
    text = browser.page("/ui/decisions")
    assert "Ours?" in text
    assert "Theirs?" not in text
    assert 'href="/ui/queues"' not in text
    assert "Ours?" in browser.page(f"/ui/decisions/{mine}")
    unknown = browser.page("/ui/decisions/never-made", status=404)
    assert browser.page(f"/ui/decisions/{theirs}", status=404) == unknown
    assert browser.http.get(f"/ui/decisions?id={theirs}").status_code == 404
    for path in ("/ui", "/ui/arms", "/ui/policies", "/ui/policies/v1", "/ui/feedback", "/ui/queues"):
        browser.page(path, status=403)
    assert browser.send("/ui/policies/v1/promote", on="/ui/decisions", revision="1").status_code == 403
