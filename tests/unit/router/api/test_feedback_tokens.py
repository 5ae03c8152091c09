"""Feedback tokens: what they say, and that nobody else can make or change one."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbandit.router.api.security.feedback_tokens import FeedbackToken, read_token, signed
from ragbandit.shared.errors import Unauthorized
from tests.support.examples import steady

SECRET = b"s" * 32
TOKEN = FeedbackToken(decision_id="d-1", expires_at=1000, kinds=("rating",), rater="ann", api_key="abc")


@steady
@given(
    rater=st.none() | st.text(max_size=64),
    decision=st.text(min_size=1, max_size=64),
    kinds=st.sampled_from([("rating",), ("event",), ("rating", "event")]),
)
def test_a_token_says_what_was_signed(rater, decision, kinds):
    """It comes back as it was made, whatever the names are."""
    made = FeedbackToken(decision_id=decision, expires_at=5, kinds=kinds, rater=rater, api_key=None)
    assert read_token(signed(made, secret=SECRET), secret=SECRET, now=4.0) == made


def test_a_token_ends():
    """It is refused from its last second on."""
    text = signed(TOKEN, secret=SECRET)
    assert read_token(text, secret=SECRET, now=999.9) == TOKEN
    with pytest.raises(Unauthorized, match="over"):
        read_token(text, secret=SECRET, now=1000.0)


def test_what_was_not_signed_here_is_refused():
    """Another secret, every changed character, another payload under the old signature, and what is no token."""
    text = signed(TOKEN, secret=SECRET)
    _, payload, signature = text.split(".")
    body = json.loads(base64.urlsafe_b64decode(payload + "=="))
    forged = base64.urlsafe_b64encode(json.dumps(body | {"d": "d-2"}).encode()).decode().rstrip("=")
    changed = [text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :] for at in range(len(text))]
    others = ["", "v1", "v1..", f"v2.{payload}.{signature}", f"v1.{forged}.{signature}", text + "A", "é", text * 50]
    for wrong in [*changed, *others, signed(TOKEN, secret=b"t" * 32)]:
        with pytest.raises(Unauthorized):
            read_token(wrong, secret=SECRET, now=0.0)


def test_who_is_not_named_is_one_voter_of_the_decision():
    """Tokens of one decision without a rater are one voter, those of another decision another; both fit a rater."""
    voters = {
        decision: FeedbackToken(decision_id=decision, expires_at=5, kinds=("rating",), rater=None, api_key=None).voter
        for decision in ("d-1", "d-2")
    }
    assert len(set(voters.values())) == 2
    assert all(len(voter) <= 64 for voter in voters.values())
    assert TOKEN.voter == "ann"
