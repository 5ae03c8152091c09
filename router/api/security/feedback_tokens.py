"""Feedback tokens: what lets a browser without a key judge one decision, for a time.

    v1.PAYLOAD.SIGNATURE

PAYLOAD is the base64url of a JSON object: the decision (d), when the token ends (e), the kinds of feedback that it
allows (k), who judges (r) and the key that it was made with (a). SIGNATURE is its HMAC-SHA256. Whoever has a token can
read it, and cannot make another one.
"""

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Final, Literal, get_args

from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import Unauthorized

TokenKind = Literal["rating", "event"]
TOKEN_KINDS: Final[tuple[TokenKind, ...]] = get_args(TokenKind)
#: longest token that is looked at, characters
MAX_TOKEN: Final = 1024
_VERSION: Final = "v1"


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedbackToken:
    """What a token allows."""

    decision_id: str
    #: seconds since the epoch
    expires_at: int
    kinds: tuple[TokenKind, ...]
    #: in whose name; None: somebody of whom no more is known than that they were shown this decision
    rater: str | None
    #: public id of the key that it was made with; None: the service had none
    api_key: str | None

    @property
    def voter(self) -> str:
        """The rater of its feedback: whoever uses one token has one vote of each kind."""
        if self.rater is not None:
            return self.rater
        return f"browser-{hashlib.sha256(self.decision_id.encode()).hexdigest()[:16]}"


def signed(token: FeedbackToken, *, secret: bytes) -> str:
    """The token as text, of ASCII letters, digits, dots, dashes and underscores."""
    body = {
        "d": token.decision_id,
        "e": token.expires_at,
        "k": list(token.kinds),
        "r": token.rater,
        "a": token.api_key,
    }
    payload = _text(canonical(body).encode())
    return f"{_VERSION}.{payload}.{_text(_mac(payload, secret=secret))}"


def read_token(text: str, *, secret: bytes, now: float) -> FeedbackToken:
    """The token of a text. Raises Unauthorized for one that was not made here, or is over."""
    version, _, rest = text.partition(".")
    payload, _, signature = rest.partition(".")
    if len(text) > MAX_TOKEN or version != _VERSION or not text.isascii():
        raise _refused("this is no feedback token")
    if not hmac.compare_digest(_text(_mac(payload, secret=secret)), signature):
        raise _refused("this feedback token was not made by this service")
    try:
        body = json.loads(_bytes(payload))
        token = FeedbackToken(
            decision_id=body["d"], expires_at=body["e"], kinds=tuple(body["k"]), rater=body["r"], api_key=body["a"]
        )
    except (ValueError, KeyError, TypeError, binascii.Error) as error:  # of another version: ours are signed
        raise _refused("this feedback token is of another version") from error
    if token.expires_at <= now:
        raise _refused("this feedback token is over")
    return token


def _refused(message: str) -> Unauthorized:
    return Unauthorized(message, field="token", remedy="let your own service ask /v1/feedback/token for a new one")


def _mac(payload: str, *, secret: bytes) -> bytes:
    return hmac.digest(secret, f"{_VERSION}.{payload}".encode(), "sha256")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
