"""Feedback from browsers: a token for one decision, one vote, and the pages that may send it."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from ragbandit.router.api.endpoints.browser_feedback import MAX_VOTES
from tests.support.servers.http_service import refused, routed

SITE = "https://docs.example.com"


def token(client, key, **more):
    response = client.post("/v1/feedback/token", json={"decision_id": key, **more})
    assert response.status_code == 200, response.text
    return response.json()["token"]


def sent(service, body, **headers):
    with httpx.Client(base_url=service.url, timeout=30) as browser:
        return browser.post("/v1/feedback/browser", json=body, headers=headers)


def test_a_browser_judges_with_a_token(keyed):
    """Without a key, for its decision; its later judgement replaces the earlier, and the app's own stands beside."""
    here = keyed(learning={"wait_s": 60.0, "aggregate": "mean"})
    app = here.client()
    key = routed(app)["decision_id"]
    signed = token(app, key)
    for rating in (5, 1):
        response = sent(here.service, {"token": signed, "rating": rating, "scale": "1-5"})
        assert response.status_code == 202, response.text
    app.post("/v1/feedback", json={"decision_id": key, "rating": 1.0})
    first, second, own = here.service.router.decision(key).feedback
    assert (first.rater, first.api_key) == (second.rater, second.api_key)
    assert first.rater.startswith("browser-")
    assert (own.api_key, own.rater) == (first.api_key, None)
    refused(sent(here.service, {"token": "v1.x.y", "rating": 1}), 401, "UNAUTHORIZED", field="token")
    with httpx.Client(base_url=here.service.url) as nobody:
        refused(nobody.post("/v1/feedback", json={"decision_id": key, "rating": 1}), 401, "UNAUTHORIZED")
        refused(nobody.post("/v1/feedback/token", json={"decision_id": key}), 401, "UNAUTHORIZED")


def test_a_token_is_for_the_owner_of_a_decision(keyed):
    """A key of another tenant gets none (404), and a revoked key's tokens are refused; a rater's key makes none."""
    here = keyed()
    acme = here.key("app", tenant="acme")
    app, other = here.with_header(f"Bearer {acme.text}"), here.client("app", tenant="other")
    key = routed(app)["decision_id"]
    refused(other.post("/v1/feedback/token", json={"decision_id": key}), 404, "NOT_FOUND")
    refused(here.client("rater").post("/v1/feedback/token", json={"decision_id": key}), 403, "FORBIDDEN")
    signed = token(app, key, rater="ann")
    assert sent(here.service, {"token": signed, "rating": True}).status_code == 202
    here.keys.revoke(acme.key.public_id, actor="cli:test", now=time.time())
    here.forget()
    assert "revoked" in refused(sent(here.service, {"token": signed, "rating": 1}), 401, "UNAUTHORIZED")["message"]


def test_what_a_token_allows(serve):
    """Its kinds alone, for at most the time of the setting, and so many judgements; in an open service too."""
    service = serve(feedback_events={"copied": 0.8}, server={"browser_feedback_s": 60.0})
    key = routed(service.http)["decision_id"]
    signed = token(service.http, key, kinds=["event"], rater="ann", expires_s=30)
    assert sent(service, {"token": signed, "event": "copied"}).status_code == 202
    refused(sent(service, {"token": signed, "rating": 1}), 403, "FORBIDDEN", field="token")
    for wrong, field in (({"expires_s": 61}, "expires_s"), ({"kinds": ["label"]}, "kinds"), ({"kinds": []}, "kinds")):
        body = {"decision_id": key, **wrong}
        refused(service.http.post("/v1/feedback/token", json=body), 422, "INVALID_INPUT", field=field)
    unknown = {"decision_id": "nobody"}
    signed = service.http.post("/v1/feedback/token", json=unknown).json().get("token")
    if signed is not None:  # an open service looks when the judgement comes
        refused(sent(service, {"token": signed, "rating": 1}), 404, "NOT_FOUND")
    signed = token(service.http, key, rater="bob")
    codes = [sent(service, {"token": signed, "rating": at % 2}).status_code for at in range(MAX_VOTES + 1)]
    assert codes == [202] * MAX_VOTES + [403]


def test_tokens_take_the_quota_of_their_tenant(keyed, redis_client, redis_server):
    """What tokens of different raters bring counts with what the key sends; what is not stored does not count."""
    here = keyed(redis_url=redis_server, tenants={"acme": {"feedback_per_day": MAX_VOTES + 3}})
    app = here.client("app", tenant="acme")
    key = routed(app)["decision_id"]
    assert app.post("/v1/feedback", json={"decision_id": key, "rating": 1, "rater": "own"}).status_code == 202
    first, second = token(app, key, rater="ann"), token(app, key, rater="bob")
    codes = [sent(here.service, {"token": first, "rating": 1}).status_code for _ in range(MAX_VOTES + 5)]
    assert codes == [202] * MAX_VOTES + [403] * 5
    assert [sent(here.service, {"token": second, "rating": 1}).status_code for _ in range(3)] == [202, 202, 429]
    third = token(app, key, rater="cid")
    error = refused(sent(here.service, {"token": third, "rating": 1}), 429, "TOO_MANY_REQUESTS", field="tenant")
    assert "tenants.acme.feedback_per_day" in error["remedy"]
    refused(app.post("/v1/feedback", json={"decision_id": key, "rating": 1}), 429, "TOO_MANY_REQUESTS", field="tenant")


def test_a_token_without_a_decision_takes_no_quota(serve, redis_client, redis_server):
    """A judgement of a decision that is not there is refused, and the quota is left to others."""
    service = serve(redis_url=redis_server, tenants={"default": {"feedback_per_day": 1}})
    key = routed(service.http)["decision_id"]
    lost = token(service.http, "nobody")
    for _ in range(3):
        refused(sent(service, {"token": lost, "rating": 1}), 404, "NOT_FOUND")
    assert sent(service, {"token": token(service.http, key), "rating": 1}).status_code == 202


def test_signing_counts_in_the_rate_of_the_key(keyed, redis_client, redis_server):
    """A key signs no more tokens than its rate allows requests."""
    here = keyed(redis_url=redis_server, server={"rate_limits": {"app": "2/hour"}})
    app = here.client()
    key = routed(app)["decision_id"]
    token(app, key)
    refused(app.post("/v1/feedback/token", json={"decision_id": key}), 429, "TOO_MANY_REQUESTS")


def test_raters_of_a_decision_are_bounded(serve):
    """Tokens add raters up to the setting; those who have judged may judge again, and each decision has its own."""
    service = serve(server={"browser_feedback_raters": 2})
    first, second = (routed(service.http)["decision_id"] for _ in range(2))
    signed = {rater: token(service.http, first, rater=rater) for rater in ("ann", "bob", "cid")}
    codes = [sent(service, {"token": signed[rater], "rating": 1}).status_code for rater in ("ann", "bob", "cid", "ann")]
    assert codes == [202, 202, 409, 202]
    error = refused(sent(service, {"token": signed["cid"], "rating": 1}), 409, "CONFLICT", field="token")
    assert "server.browser_feedback_raters" in error["remedy"]
    assert sent(service, {"token": token(service.http, second, rater="cid"), "rating": 1}).status_code == 202


def test_one_token_at_once(serve):
    """Of many judgements at the same moment exactly as many are stored as of one after the other."""
    service = serve()
    key = routed(service.http)["decision_id"]
    body = {"token": token(service.http, key), "rating": 1}
    with ThreadPoolExecutor(20) as threads:
        codes = list(threads.map(lambda _: sent(service, body).status_code, range(3 * MAX_VOTES)))
    assert (codes.count(202), codes.count(403)) == (MAX_VOTES, 2 * MAX_VOTES)
    assert len(service.router.decision(key).feedback) == MAX_VOTES


def test_pages_that_may_send_it(serve):
    """A page of a named site may ask and read the reply, errors too; others get no leave; no other path has any."""
    service = serve(server={"feedback_origins": [SITE]})
    with httpx.Client(base_url=service.url) as browser:
        for origin, allowed in ((SITE, SITE), ("https://evil.example.com", None), (None, None)):
            headers = {} if origin is None else {"Origin": origin}
            asked = {**headers, "Access-Control-Request-Method": "POST"}
            replies = [
                browser.options("/v1/feedback/browser", headers=asked),
                browser.post("/v1/feedback/browser", json={"token": "no", "rating": 1}, headers=headers),
            ]
            assert [reply.status_code for reply in replies] == [204, 401]
            assert [reply.headers.get("access-control-allow-origin") for reply in replies] == [allowed] * 2
            assert "access-control-allow-origin" not in browser.options("/v1/feedback", headers=asked).headers


def test_processes_of_a_store_share_the_secret(serve, make_world):
    """What one process signs another takes; a secret in the settings goes before that of the store."""
    first = serve()
    key = routed(first.http)["decision_id"]
    second = serve(data_dir=first.router.settings.data_dir)
    assert sent(second, {"token": token(first.http, key), "rating": 1}).status_code == 202
    third = serve(data_dir=first.router.settings.data_dir, server={"feedback_secret": "x" * 32})
    refused(sent(third, {"token": token(first.http, key), "rating": 1}), 401, "UNAUTHORIZED")
