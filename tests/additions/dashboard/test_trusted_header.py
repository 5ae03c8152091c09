"""People whom a proxy has signed in: its header opens the pages, and nobody else's does."""

import time

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.serving.setup.bootstrap import check_exposure
from ragbandit.router.storage.access.audit_log import entries
from tests.support.cases import every_case

TRUSTED = {
    "trusted_header": "X-Forwarded-Groups",
    "trusted_roles": {"everybody": "reader", "ml-team": "operator", "platform": "admin"},
    "trusted_user_header": "X-Forwarded-User",
    "trusted_proxies": ["127.0.0.0/8"],
}


@pytest.fixture
def arrive(serve, visit):
    """A function to a service with these settings, and what a browser there gets with these headers."""

    def start(**more):
        service = serve(server=TRUSTED | more)

        def browser(groups=None, user="ann", **headers):
            one = visit(service)
            given = {"x-forwarded-groups": groups, "x-forwarded-user": user} | headers
            one.http.headers.update({name: value for name, value in given.items() if value is not None})
            return one

        return service, browser

    return start


def test_who_the_proxy_has_signed_in_acts_by_the_role_of_the_groups(arrive):
    """The highest role counts; the audit log names the person; a reader sees, and acts not."""
    service, browser = arrive()
    text = browser("everybody, ml-team").page("/ui/policies")
    assert "Signed in as" in text
    assert "role operator" in text
    done = browser("ml-team").send("/ui/switch", on="/ui/policies", to="champion", reason="storm")
    assert done.status_code == 303
    assert {(one.actor, one.action) for one in entries(service.router.database)} >= {("proxy:ann", "policy.kill")}
    for name, sent in {"René.Łoś": "René.Łoś".encode(), "Zoë": "Zoë".encode("latin-1")}.items():
        page = service.http.get("/ui/policies", headers=[("x-forwarded-groups", "ml-team"), ("x-forwarded-user", sent)])
        assert name in page.text
    reader = browser("everybody")
    assert reader.http.post("/ui/switch", data={"to": "champion", "reason": "x"}).status_code == 403


def test_who_has_no_role_by_the_proxy(arrive):
    """Without a role, or with a header that came twice, the browser asks for a key. The header only opens pages."""
    service, browser = arrive()
    cases = {"unknown": browser("marketing"), "none": browser(None), "nameless": browser("platform", user=None)}
    with every_case() as each:
        for name, one in cases.items():
            with each(name):
                assert "Basic" in one.http.get("/ui").headers["www-authenticate"]
    twice = [("x-forwarded-groups", "everybody"), ("x-forwarded-groups", "platform"), ("x-forwarded-user", "ann")]
    assert service.http.get("/ui", headers=twice).status_code == 401
    assert browser("platform").http.get("/v1/status").status_code == 401
    assert service.http.get("/v1/status").status_code == 401


def test_a_header_from_anybody_else_is_ignored(arrive):
    """A peer that is not the proxy has no role by the header, and cannot call itself the proxy."""
    _, browser = arrive(trusted_proxies=["10.1.2.3", "fd00::/8"])
    for more in ({}, {"x-forwarded-for": "10.1.2.3"}):
        assert browser("platform", **more).http.get("/ui").status_code == 401


def test_settings_that_would_believe_anybody_are_refused():
    """The header takes proxies and roles; without it none of them means anything; a service with it may listen."""
    wrong = {
        "trusted_proxies": {"trusted_proxies": []},
        "trusted_roles": {"trusted_roles": {}},
        "trusted_header": {"trusted_header": None},
        "open: false": {"open": True},
        "does not appear to be": {"trusted_proxies": ["proxy.example"]},
        "has host bits set": {"trusted_proxies": ["10.0.0.1/8"]},
    }
    for words, given in wrong.items():
        with pytest.raises(ValueError, match=words):
            Settings.model_validate({"server": TRUSTED | given})
    check_exposure(Settings.model_validate({"server": TRUSTED | {"host": "0.0.0.0"}}), now=time.time())
