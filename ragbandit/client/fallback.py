"""Fallback: the decisions that a client makes while its service is away; nothing is stored or learned of them."""

import logging
import threading
from collections import OrderedDict
from typing import Final

from ragbandit.client.replies.decisions import ClientRouteReply
from ragbandit.shared.errors import InvalidInput, RagBanditError

log = logging.getLogger("ragbandit.client")

#: decision ids of a client whose service was away begin with this
_DEGRADED: Final = "degraded-"
#: own ids of callers that are remembered as degraded, so that nothing is reported for them
_REMEMBERED: Final = 10_000


def is_degraded(decision_id: str) -> bool:
    """Whether a client made this decision id because its service was away: nothing is stored under it."""
    return isinstance(decision_id, str) and decision_id.startswith(_DEGRADED)


class Fallback:
    """What one client does without its service. Safe to use from several threads.

    default_arm: what `route` names then; None: it raises.
    """

    def __init__(self, default_arm: str | None) -> None:
        if default_arm is not None and (not isinstance(default_arm, str) or not default_arm):
            message = f'"default_arm" must be the name of an arm, not {default_arm!r:.80}'
            raise InvalidInput(message, field="default_arm", remedy="name an arm of the service")
        self.default_arm = default_arm
        #: decisions that the client had to do without
        self.count = 0
        self._is_away = False
        self._own_ids: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def decided(self, decision_id: str) -> None:
        """The service has decided, under this id."""
        with self._lock:
            self._is_away = False
            self._own_ids.pop(decision_id, None)

    def reply(self, arm: str, *, decision_id: str, is_own: bool, error: RagBanditError) -> ClientRouteReply:
        """A decision for this arm. is_own: the id is the caller's. error: why the service did not make it."""
        with self._lock:
            self.count += 1
            was_away, self._is_away = self._is_away, True
            if is_own:  # it may be reported under the caller's id, which the service may know under another arm
                self._own_ids[decision_id] = None
                while len(self._own_ids) > _REMEMBERED:
                    self._own_ids.popitem(last=False)
        if not was_away:  # once an outage
            log.warning("routing by default_arm %r, nothing is learned: %s", arm, error)
        return ClientRouteReply(
            decision_id=f"{_DEGRADED}{decision_id}",
            arm=arm,
            propensity=1.0,
            pmf={arm: 1.0},
            scores=None,
            policy="",
            version="",
            explored=False,
            fault=f"the service {'refused' if error.status == 403 else 'was away'}: {error.message}",
            cost_weight=None,
            price=None,
            route_ms=0.0,
            degraded=True,
        )

    def has(self, decision_id: object) -> bool:
        """Whether this decision was made by this client, or by another, because the service was away."""
        with self._lock:
            return isinstance(decision_id, str) and (is_degraded(decision_id) or decision_id in self._own_ids)

    def may_replace(self, error: RagBanditError, *, arm: str, arms: object) -> bool:
        """Whether the service cannot serve, or refuses the arms, and this arm is one of those allowed."""
        refused_arms = error.status == 403 and error.field == "arms"  # by a budget, or by the scope of the key
        away = error.status >= 500 or error.status == 429
        return (away or refused_arms) and (not isinstance(arms, list | tuple) or arm in arms)
