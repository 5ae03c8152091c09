"""How long a server asks to wait: headers, fields of errors, and words, as vendors document them."""

import json

import pytest
from multidict import CIMultiDict

from ragbandit.shared.model_servers.error_replies import failure_of_status

NOW = 1_790_000_000.0
#: limits of a minute, as Groq has them
LIMITS = {
    "x-ratelimit-reset-requests": "20s",
    "x-ratelimit-remaining-requests": "0",
    "x-ratelimit-reset-tokens": "6m0s",
}
RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "2.2s"}
GEMINI = {"error": {"code": 429, "message": "Quota exceeded.", "status": "RESOURCE_EXHAUSTED", "details": [RETRY_INFO]}}


def quota(name, *, field="quotaId"):
    violation = {field: name, "quotaValue": "50"}
    failure = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}
    return {"error": {"code": 429, "message": "Quota exceeded.", "details": [failure, RETRY_INFO]}}


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"retry-after-ms": "350"}, None, 0.35),
        ({"retry-after-ms": "1500", "retry-after": "60"}, None, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "3"}, GEMINI, 3.0),
        ({"x-ms-retry-after-ms": "1200"}, None, 1.2),
        ({}, GEMINI, 2.2),
        ({}, [GEMINI], 2.2),
        ({}, {"error": {"metadata": {"raw": json.dumps(GEMINI)}}}, 2.2),
        ({}, {"error": {"details": [{"retryDelay": {"seconds": 7, "nanos": 500_000_000}}]}}, 7.5),
        ({}, {"error": {"details": [{"retry_delay": {"seconds": "7"}}]}}, 7.0),
        ({}, {"retryable": True, "retry_after": 30}, 30.0),
        ({}, {"error": {"retry_after_ms": 400}}, 0.4),
        ({}, {"error": {"retry_after_ms": "500ms"}}, 0.5),
        ({}, {"error": {"message": "Rate limit reached on tokens per min. Please try again in 6m0.5s. See x"}}, 360.5),
        ({}, {"error": {"message": "Rate limit reached. Please try again in 350ms."}}, 0.35),
        ({}, {"error": {"message": "Please retry after 26 seconds. Contact us"}}, 26.0),
        ({}, {"error": {"message": "Quota exceeded. Please retry in 2.2s."}}, 2.2),
        ({}, {"error": {"message": "Rate limit reached for requests. Please try again in 1m2.5s. Visit"}}, 62.5),
        ({}, {"error": {"message": "You exceeded your quota.\nPlease retry in 32.937425301s."}}, 32.937425301),
        ({}, {"error": {"message": "No capacity is left. Your quota will reset after 1m45s."}}, 105.0),
        ({}, {"error": {"message": "Please retry your requests after 5 seconds."}}, 5.0),
        (
            {},
            {"error": {"message": "Rate limit of 10 per 60s exceeded. Please wait 34 seconds before retrying."}},
            34.0,
        ),
        ({}, {"error": "Model x is currently loading", "estimated_time": 20.0}, 20.0),
        ({}, {"message": "Try again in 1 hour and 2 minutes"}, 3600.0),
        ({}, "Too many requests. Please try again in 5 minutes", 300.0),
        ({"x-ratelimit-reset-requests": "1m30s", "x-ratelimit-remaining-requests": "0"}, None, 90.0),
        (CIMultiDict({"X-RateLimit-Reset-Tokens": "6ms", "X-RateLimit-Remaining-Tokens": "0"}), None, 0.006),
        ({"x-ratelimit-reset": f"{NOW + 40:.0f}", "x-ratelimit-remaining": "0"}, None, 40.0),
        (LIMITS | {"x-ratelimit-remaining-tokens": "0"}, None, 360.0),
        (LIMITS | {"x-ratelimit-remaining-tokens": "0"}, {"message": "Please try again in 7s"}, 7.0),
        (LIMITS | {"x-ratelimit-remaining-tokens": "120"}, None, 20.0),
        (LIMITS | {"x-ratelimit-remaining-requests": "5"}, None, None),
        ({"x-ratelimit-reset": "2026-01-01T00:00:00Z", "x-ratelimit-remaining": "0"}, None, None),
        ({"x-ratelimit-reset": "1700000000", "x-ratelimit-remaining": "0"}, None, None),
        ({"x-ratelimit-reset": "30"}, None, None),
        ({}, {"error": {"metadata": {"headers": {"X-RateLimit-Reset": f"{1e3 * (NOW + 40):.0f}"}}}}, 40.0),
        ({}, {"error": {"metadata": {"headers": {"Retry-After": "25"}}}}, 25.0),
        ({}, {"detail": "Request was throttled. Your rate limit for creating predictions resets in ~10s."}, 10.0),
        ({}, {"detail": "Request was throttled. Expected available in 30 seconds."}, 30.0),
        ({}, {"error": {"message": "You hit your limit. Try again in 3 days 4 hours 9 minutes."}}, 3600.0),
        ({}, {"error": {"retryAfterMs": 1500}}, 1.5),
        ({}, {"error": {"type": "usage_limit_reached", "resets_at": NOW + 50, "resets_in_seconds": 50}}, 50.0),
        ({}, {"error": {"message": "Please try again after 2026-11-30 10:20:30 UTC"}}, None),
        ({}, {"error": {"message": "Your limit resets in 5 minutes, 30 seconds - or earlier"}}, 330.0),
        ({}, {"error": {"message": "Please try again in a while", "details": [None, 3, {"retryDelay": None}]}}, None),
        ({}, {"error": {"retry_after": "soon", "details": "x"}}, None),
        ({}, {"retry_after": True}, None),
        ({}, {"retry_after": -4}, None),
        ({}, {"retry_after": 1e300}, 3600.0),
        ({}, None, None),
    ],
)
def test_the_wait_that_a_server_asks_for(headers, body, seconds, monkeypatch):
    """A header in milliseconds goes before Retry-After, that before fields of the error, those before its words, and
    its words before the ends of the limits of which nothing remains.
    """
    monkeypatch.setattr("time.time", lambda: NOW)
    waited = failure_of_status(429, headers=headers, body=body).retry_after_s
    assert waited == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("status", [400, 500, 503])
def test_a_limit_is_no_wait_after_another_error(status):
    """Servers name their limits in every reply, so only a refusal by a limit makes its end a wait."""
    assert failure_of_status(status, headers=LIMITS | {"x-ratelimit-remaining-tokens": "0"}).retry_after_s is None


@pytest.mark.parametrize(
    "body",
    [
        quota("GenerateRequestsPerDayPerProjectPerModel-FreeTier"),
        [quota("GenerateRequestsPerDayPerProjectPerModel-FreeTier")],
        quota("generativelanguage.googleapis.com/generate_requests_per_model_per_day", field="quotaMetric"),
        quota("GenerateContentRequestsPerDayPerProjectPerRegion", field="quota_limit"),
        {"error": {"message": "Rate limit exceeded: free-models-per-day", "code": 429}},
        {"error": {"message": "Rate limit exceeded: limit_rpd/small/5f27", "code": 429}},
        {"message": "You are using a Trial key, which is limited to 1000 API calls / month."},
        {"error": {"message": "Rate limit of 50 per 86400s exceeded for UserByModelByDay. Please wait 5 seconds."}},
        {"error": {"message": "Rate limit reached on tokens per day (TPD): Limit 100000, Used 100000."}},
        {"errors": [{"message": "you have used up your daily free allocation of 10,000 neurons"}]},
    ],
)
def test_a_daily_quota_is_not_tried_again(body):
    """A quota of the day that is used up asks for no wait, also if the server names a short one."""
    failure = failure_of_status(429, headers=LIMITS | {"x-ratelimit-remaining-tokens": "0"}, body=body)
    assert (failure.has_no_quota, failure.may_pass, failure.retry_after_s) == (True, False, None)


def test_a_quota_of_a_minute_is_tried_again():
    """A quota of the minute is a limit with its wait, and so is one of a day that frees a part of itself sooner."""
    rolling = "Rate limit reached on requests per day (RPD): Limit 10000, Used 10000. Please try again in 8.64s."
    failure = failure_of_status(429, body={"error": {"message": rolling}})
    assert (failure.may_pass, failure.retry_after_s) == (True, 8.64)
    failure = failure_of_status(429, body=quota("GenerateRequestsPerMinutePerProjectPerModel-FreeTier"))
    assert (failure.may_pass, failure.retry_after_s) == (True, 2.2)


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"details": [[[[[[[[[[[[RETRY_INFO]]]]]]]]]]]]}},
        {"error": {"message": "retry in " * 2_000 + "1" * 10_000}},
        {"error": {"details": [*([{"x": {"y": [1] * 50}}] * 50_000), RETRY_INFO]}},
        {"error": {"metadata": {"raw": f"{' ' * 100_000}{json.dumps(GEMINI)}"}}},
    ],
    ids=["deep", "words", "many", "text"],
)
def test_no_body_takes_long(body):
    """What stands beyond a number of levels, values or characters of a body is not read, a wait neither."""
    assert failure_of_status(429, body=body).retry_after_s is None
