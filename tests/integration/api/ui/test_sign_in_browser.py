"""Sign-in in a real Chromium: the provider is another site, and the session's cookie comes along afterwards."""

from ragbandit.router.api.security.oidc import CALLBACK
from tests.integration.api.ui.test_browser import AXE, chromium, playwright, pytestmark
from tests.integration.api.ui.test_sign_in import oidc_settings
from tests.support.servers.oidc_provider import SECRET, OidcProvider

__all__ = ["chromium", "playwright", "pytestmark"]


def test_sign_in_from_another_site(serve, chromium, monkeypatch):
    """From the button to the page that was wanted; the login is accessible and no wider than a phone."""
    monkeypatch.setenv("CLIENT_SECRET", SECRET)
    provider = OidcProvider(host="localhost")
    try:
        given = oidc_settings(provider, label="Example")
        service = serve(server={"public_url": "http://rag.example", "oidc": given})
        service.app.state.oidc._redirect = service.url + CALLBACK  # its port is known now
        tab = chromium.new_context(viewport={"width": 360, "height": 800}).new_page()
        tab.goto(f"{service.url}/ui/decisions?arm=single_step")
        tab.evaluate(AXE)
        for scheme in ("light", "dark"):
            tab.emulate_media(color_scheme=scheme)
            assert tab.evaluate("async () => (await axe.run()).violations.map(each => each.id)") == [], scheme
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360
        tab.get_by_role("link", name="Sign in with Example").click()
        tab.wait_for_url("**/ui/decisions?arm=single_step")
        assert "Signed in as alice, role reader" in tab.inner_text("footer")
        tab.get_by_role("button", name="Log out").click()
        tab.wait_for_url("**/ui/login")
        tab.context.close()
    finally:
        provider.close()
