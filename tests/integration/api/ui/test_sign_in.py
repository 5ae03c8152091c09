"""People sign in at a real provider of OpenID Connect, and nobody else does."""

import time
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from ragbandit.router.api.security import oidc
from ragbandit.router.api.security.oidc import OidcClient
from ragbandit.router.config.settings import Settings
from ragbandit.router.serving.setup.bootstrap import check_exposure
from ragbandit.router.storage.access.audit_log import entries
from ragbandit.shared.errors import ConfigError
from tests.support.cases import every_case
from tests.support.servers.oidc_provider import CLIENT, SECRET, OidcProvider, new_key

ROLES = {"reader": ["rag-readers"], "operator": ["rag-operators"], "admin": ["rag-admins", "root"]}


@pytest.fixture(scope="module")
def shared_provider():
    started = OidcProvider()
    yield started
    started.close()


@pytest.fixture
def provider(shared_provider, monkeypatch):
    monkeypatch.setenv("CLIENT_SECRET", SECRET)
    before = dict(vars(shared_provider))
    yield shared_provider
    vars(shared_provider).update(before)


def oidc_settings(provider, **more):
    return {"issuer": provider.issuer, "client_id": CLIENT, "client_secret_env": "CLIENT_SECRET", "roles": ROLES} | more


@pytest.fixture
def signing(serve, provider, visit):
    """A function to a service with sign-in, and a browser's way there and back."""

    def start(**more):
        service = serve(server={"public_url": "http://rag.example", "oidc": oidc_settings(provider, **more)})
        return service, lambda: Person(visit(service), service)

    return start


class Person:
    """A browser that follows the provider's redirect, as `http://rag.example` were this service."""

    def __init__(self, visitor, service):
        self.visitor, self.http, self.service = visitor, visitor.http, service

    def to_provider(self, onward=""):
        """The link of the login page; what the provider's reply makes the browser ask for."""
        reply = self.http.get("/ui/login/oidc", params={"next": onward} if onward else {})
        assert reply.status_code == 303, reply.text
        back = httpx.get(reply.headers["location"]).headers["location"]
        assert back.startswith("http://rag.example/ui/login/oidc/callback?")
        return back.removeprefix("http://rag.example")

    def sign_in(self, onward=""):
        return self.http.get(self.to_provider(onward))


def test_a_person_signs_in_acts_and_logs_out(signing, provider):
    """The button leads to the provider and back to the page that was wanted; the audit log names the person."""
    service, browser = signing(label="Example <SSO>")
    provider.claims = {"sub": "alice", "groups": ["other", "rag-operators", "rag-readers"]}
    person = browser()
    asked = person.http.get("/ui/policies")
    assert (asked.status_code, asked.headers["location"]) == (303, "/ui/login?next=/ui/policies")
    login = person.visitor.page("/ui/login?next=/ui/policies")
    assert 'href="/ui/login/oidc?next=%2Fui%2Fpolicies">Sign in with Example &lt;SSO&gt;</a>' in login
    done = person.sign_in("/ui/policies")
    assert done.status_code == 200
    assert done.headers["refresh"] == "0; url=/ui/policies"
    cookies = {cookie.split("=")[0]: cookie.lower() for cookie in done.headers.get_list("set-cookie")}
    assert all(part in cookies["ragbandit_session"] for part in ("httponly", "samesite=strict", "max-age=28800"))
    assert "max-age=0" in cookies["ragbandit_sign_in"]
    text = person.visitor.page("/ui/policies")
    assert "Signed in as" in text
    assert "Activate the kill switch" in text
    assert person.visitor.send("/ui/switch", on="/ui/policies", to="champion", reason="storm").status_code == 303
    assert {(one.actor, one.action) for one in entries(service.router.database)} >= {("oidc:alice", "policy.kill")}
    assert person.visitor.send("/ui/logout", on="/ui").status_code == 303
    assert person.http.get("/ui").status_code == 303


def test_the_service_is_closed_and_keys_go_on(signing, with_keys):
    """With sign-in and no key nothing is open, and the service may listen anywhere; a key logs in beside it."""
    service, browser = signing()
    assert service.http.get("/v1/status").status_code == 401
    exposed = service.router.settings.model_copy(
        update={"server": service.router.settings.server.model_copy(update={"host": "0.0.0.0"})}
    )
    check_exposure(exposed, now=time.time())
    person = browser()
    person.sign_in()
    session = f"ragbandit_session={person.http.cookies['ragbandit_session']}"
    assert service.http.get("/v1/status", headers={"cookie": session}).status_code == 401  # pages alone
    keyed = browser()
    assert keyed.visitor.log_in(with_keys(service, "reader")).status_code == 303
    assert "Key <span" in keyed.visitor.page("/ui")


def test_roles_and_tenants_by_claims(signing, provider):
    """The highest role counts; a reader acts not; a tenant sees its own; who has none is told of the claim."""
    _, browser = signing(groups_claim="realm.groups", tenant_claim="org", actor_claim="email")
    base = {"sub": "u1", "email": "ann@example.com", "org": "acme"}

    def attempt(**claims):
        provider.claims = {name: value for name, value in (base | claims).items() if value is not None}
        person = browser()
        return person, person.sign_in()

    person, done = attempt(realm={"groups": ["rag-readers", "root"]})
    assert done.headers["refresh"] == "0; url=/ui/decisions"
    assert "role admin, tenant acme" in person.visitor.page("/ui/decisions")
    assert "ann@example.com" in person.visitor.page("/ui/decisions")
    assert "this person belongs to one" in person.visitor.page("/ui/queues", status=403)
    person, done = attempt(realm={"groups": "rag-readers"})  # one text, and no list
    refused = person.visitor.send("/ui/switch", on="/ui/decisions", to="champion", reason="x")
    assert refused.status_code == 403
    assert "a person of the role reader may not call" in refused.text
    for words, claims in {
        "the claim realm.groups of your account is missing": {},
        "the claim realm.groups of your account says strangers": {"realm": {"groups": ["strangers"]}},
        "the claim org of your account is missing": {"realm": {"groups": ["root"]}, "org": None},
        "the claim org of your account cannot be used": {"realm": {"groups": ["root"]}, "org": "a b"},
        "the claim email of your account is missing": {"realm": {"groups": ["root"]}, "email": None},
    }.items():
        person, done = attempt(**claims)
        assert done.status_code == 403
        assert words in done.text
        assert person.http.get("/ui/decisions").status_code == 303


def test_tokens_that_prove_nobody(signing, provider, monkeypatch):
    """Forged, expired, early, of another issuer, client or sign-in, unsigned: each is refused, by its kind."""
    _, browser = signing()
    clock = time.time()
    other = new_key("k1")
    spoiled = {
        "BadSignatureError": lambda: setattr(provider, "key", other),
        "InvalidClaimError nonce": {"nonce": "another"},
        "MissingClaimError nonce": {"nonce": None},
        "InvalidClaimError aud": {"aud": "another"},
        "MissingClaimError aud": {"aud": None},
        "InvalidClaimError iss": {"iss": "https://evil.example"},
        "ExpiredTokenError exp": {"exp": int(clock) - 100},
        "MissingClaimError exp": {"exp": None},
        "InvalidClaimError iat": {"iat": int(clock) + 300},
        "MissingClaimError sub": {"sub": None},
        "made for another client": {"aud": [CLIENT, "another"]},
        "another client": {"azp": "another"},
    }
    good, signer = provider.change, provider.key
    with every_case() as case:
        for words, spoil in spoiled.items():
            with case(words):
                provider.change, provider.key = good, signer
                if callable(spoil):
                    spoil()
                else:
                    provider.change = lambda claims, spoil=spoil: {
                        name: value for name, value in (claims | spoil).items() if value is not None
                    }
                person = browser()
                done = person.sign_in()
                assert done.status_code == 401
                assert words in done.text
                assert "ragbandit_session" not in person.http.cookies
        for name, token in {
            "unsigned": "eyJhbGciOiJub25lIn0.e30.",
            "by the public secret": "eyJhbGciOiJIUzI1NiJ9.e30.x",
            "no token": "rubbish",
        }.items():
            with case(name), monkeypatch.context() as patch:
                provider.change, provider.key = good, signer
                patch.setattr(provider, "token", lambda _asked, token=token: token)
                assert browser().sign_in().status_code == 401


def test_the_way_back_is_bound_to_its_browser(signing, provider):
    """A callback that another browser began, a replayed one, a wrong state and another provider's reply: refused."""
    _, browser = signing()
    person, thief = browser(), browser()
    back = person.to_provider()
    assert thief.http.get(back).status_code == 403  # it has no sign-in of its own
    thief.to_provider()
    assert "did not begin in this browser" in thief.http.get(back).text
    kept = dict(person.http.cookies)
    assert person.http.get(back).status_code == 200
    assert person.http.get(back).status_code == 403  # the cookie is gone
    person.http.cookies.clear()
    replayed = person.http.get(back, headers={"cookie": "; ".join(f"{name}={value}" for name, value in kept.items())})
    assert replayed.status_code == 401  # and with it the code was used
    assert "its code was used" in replayed.text

    state = parse_qs(urlsplit(person.to_provider()).query)["state"][0]
    for query, status in {
        "code=x": 403,
        "code=x&state=": 403,
        f"code=x&state={state[:-1]}é": 403,
        f"state={state}&code=x&iss=https://evil.example": 403,
        f"state={state}&error=access_denied": 401,
        f"state={state}": 401,
    }.items():
        again = browser()
        mine = parse_qs(urlsplit(again.to_provider()).query)["state"][0]
        reply = again.http.get(f"/ui/login/oidc/callback?{query.replace(state, mine)}")
        assert reply.status_code == status, query
        assert "ragbandit_session" not in again.http.cookies
    assert provider.codes  # none of these reached the provider


def test_a_sign_in_leads_to_no_other_site(signing):
    """After it the browser goes to a page of ours, whatever the link said."""
    _, browser = signing()
    for way in (
        "//evil.example",
        "https://evil.example",
        "/ui//evil",
        "/uix",
        "\\evil",
        "/ui; url=https://evil.example",
    ):
        assert browser().sign_in(way).headers["refresh"] == "0; url=/ui", way


def test_sessions_end_and_cannot_be_made(signing, provider, monkeypatch):
    """A changed cookie is none; a session ends at its time; one of other settings (a role that was taken) is none."""
    service, browser = signing(session_s=60.0)
    person = browser()
    person.sign_in()
    session = person.http.cookies["ragbandit_session"]
    packed, signed = session.split(".")
    sign_in_cookie = browser()
    sign_in_cookie.to_provider()
    foreign = sign_in_cookie.http.cookies["ragbandit_sign_in"]
    other = packed[:-2] + ("AA" if packed[-2:] != "AA" else "BB")
    with every_case() as case:
        for forged in (f"{other}.{signed}", f"{packed}.{'0' * 64}", f"{packed}.", packed, foreign):
            with case(forged[-20:]):
                reply = browser().http.get("/ui", headers={"cookie": f"ragbandit_session={forged}"})
                assert reply.status_code == 303
    sessions = service.app.state.page_sessions
    monkeypatch.setattr(sessions, "_clock", lambda: time.time() + 61)
    assert person.http.get("/ui").status_code == 303
    monkeypatch.undo()
    assert person.http.get("/ui").status_code == 200
    gate = service.app.state.gate
    changed = gate._server.oidc.model_copy(update={"roles": {"admin": ["root"]}})
    monkeypatch.setattr(gate, "_server", gate._server.model_copy(update={"oidc": changed}))
    assert person.http.get("/ui").status_code == 303


def test_keys_of_the_provider_change(signing, provider, monkeypatch):
    """A token by a new key has the keys read again, at most once a minute; a provider that fails is 503."""
    _, browser = signing()
    assert browser().sign_in().status_code == 200
    reads = provider.key_reads
    assert browser().sign_in().status_code == 200
    assert provider.key_reads == reads
    provider.key = new_key("k2")
    provider.published = [*provider.published, provider.key]
    assert browser().sign_in().status_code == 401  # read a moment ago
    assert provider.key_reads == reads
    monkeypatch.setattr(oidc, "KEYS_S", 0.0)
    assert browser().sign_in().status_code == 200
    monkeypatch.setattr(provider, "exchanged", lambda *_: (500, {"error": "server_error"}))
    failed = browser().sign_in()
    assert failed.status_code == 503
    assert "an API key works meanwhile" in failed.text


def test_settings_that_let_nobody_in_or_everybody(provider, monkeypatch):
    """Each wrong setting is refused by name; so is a secret that is not there."""
    good = {"public_url": "https://rag.example", "oidc": oidc_settings(provider)}
    Settings.model_validate({"server": good})
    for words, change in {
        "public_url must be set": {"public_url": None},
        "open must be false": {"open": True},
        "must begin with https": {"oidc": oidc_settings(provider, issuer="http://login.example.com")},
        "openid must be among": {"oidc": oidc_settings(provider, scopes=["email"])},
        "roles": {"oidc": oidc_settings(provider, roles={})},
    }.items():
        with pytest.raises(ValueError, match=words):
            Settings.model_validate({"server": good | change})
    monkeypatch.delenv("CLIENT_SECRET")
    with pytest.raises(ConfigError, match="CLIENT_SECRET is not set"):
        OidcClient(Settings.model_validate({"server": good}).server.oidc, public_url="https://rag.example")


def test_without_sign_in_there_is_none(service, visit):
    """A service without server.oidc has no such page, and no button."""
    assert visit(service).http.get("/ui/login/oidc").status_code == 404
    assert visit(service).http.get("/ui/login/oidc/callback").status_code == 404
