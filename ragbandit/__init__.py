"""RagBandit learns online which strategy answers each question correctly at the lowest cost.

    from ragbandit import Router
    with Router.open() as router:
        decision = router.route("Who wrote Dracula?")
        ...run decision.arm in your own stack...
        router.outcome(decision.id, answer="Bram Stoker", steps=1)
        router.feedback(decision.id, rating=True)

The import is fast: Router, Client, AsyncClient, advise, open_log and replay are loaded at their first use.
"""

import gc
from importlib import import_module
from typing import TYPE_CHECKING

from ragbandit.shared.errors import (
    ArmFailed,
    ConfigError,
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    NotReady,
    Overloaded,
    PolicyFault,
    QueueError,
    RagBanditError,
    SnapshotError,
    StoreError,
    TooManyRequests,
    Unauthorized,
    missing_module,
)
from ragbandit.shared.types import (
    Budget,
    Continues,
    Cost,
    Counters,
    Decision,
    DecisionId,
    Feedback,
    FeedbackId,
    Message,
    Outcome,
    Query,
    Receipt,
    Sent,
    Terms,
)
from ragbandit.shared.version import __version__ as __version__

if TYPE_CHECKING:
    from ragbandit.additions.advice.library import advise
    from ragbandit.client import AsyncClient, Client
    from ragbandit.router.offline.replay import open_log, replay
    from ragbandit.router.serving.router import Router

# Names that are loaded at their first use.
__all__ = ["AsyncClient", "Client", "Router", "advise", "open_log", "replay"]
# Values.
__all__ += ["Budget", "Cost", "Counters", "Decision", "DecisionId", "Feedback", "FeedbackId", "Message", "Outcome"]
__all__ += ["Continues", "Query", "Receipt", "Sent", "Terms"]
# Errors.
__all__ += ["ArmFailed", "ConfigError", "Conflict", "Forbidden", "InvalidInput", "NotFound", "NotReady", "Overloaded"]
__all__ += ["PolicyFault", "QueueError", "RagBanditError", "SnapshotError", "StoreError", "TooManyRequests"]
__all__ += ["Unauthorized"]

_LAZY = {
    "AsyncClient": "ragbandit.client",
    "Client": "ragbandit.client",
    "Router": "ragbandit.router.serving.router",
    "advise": "ragbandit.additions.advice.library",
    "open_log": "ragbandit.router.offline.replay",
    "replay": "ragbandit.router.offline.replay",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name in _LAZY:
        # With Python's default threshold of 700, looking for garbage takes a fifth of the time of an import.
        thresholds = gc.get_threshold()
        gc.set_threshold(50_000, *thresholds[1:])
        try:
            return getattr(import_module(_LAZY[name]), name)
        except ModuleNotFoundError as error:
            if error.name is not None and error.name.startswith("ragbandit.additions"):
                message = f"ragbandit.{name} needs {error.name}, and its folder was deleted from this installation"
                raise ConfigError(message, remedy="install RagBandit again") from error
            raise missing_module(error) or error from error
        finally:
            gc.set_threshold(*thresholds)
    raise AttributeError(f"module 'ragbandit' has no attribute {name!r}")
