"""Access rules of endpoints: who may call them, the limit of the body, the queue of the requests.

Every endpoint declares its rule where it stands, as `@endpoints.get(path, rule=READ)`; `docs/endpoints.md` lists them.
"""

from dataclasses import dataclass
from typing import Final, Literal

from ragbandit.router.serving.process import Queue
from ragbandit.router.storage.access.api_keys import OPERATORS
from ragbandit.shared.types import Role


@dataclass(frozen=True, slots=True)
class AccessRule:
    #: roles that may call the endpoint; None if no API key is needed
    roles: frozenset[Role] | None
    #: whether the reply shows data of all tenants, so that keys of one tenant are refused
    all_tenants: bool = False
    #: queue of the requests; None if they are handled at once
    queue: Queue | None = None
    #: setting of `server` that limits the size of the body
    size_limit: Literal["max_body_bytes", "max_batch_bytes", "max_chat_bytes"] = "max_body_bytes"
    #: whether probes and scrapers poll the endpoint: it has no rate limit, and accepts any query parameter
    is_probe: bool = False
    #: whether requests have questions, so that the edge reads the headers of questions
    asks: bool = False
    #: whether both ports serve the endpoint if server.admin_port makes it two
    on_both_ports: bool = False

    @property
    def is_for_operators(self) -> bool:
        """Whether server.admin_port serves the endpoint: probes, and what only operators may call."""
        return self.is_probe or (self.roles is not None and self.roles <= OPERATORS)

    @property
    def is_for_programs(self) -> bool:
        """Whether programs call the endpoint with a key. False for probes, for /docs and for the files of /docs."""
        return self.roles is not None and not (self.is_probe or self.on_both_ports)


def roles(*names: Role) -> frozenset[Role]:
    """These roles, and admin, which may call everything."""
    return frozenset({*names, "admin"})


_ALL_ROLES: Final = roles("reader", "app", "rater", "worker", "operator")

EVERYBODY: Final = AccessRule(None)
PROBE: Final = AccessRule(None, is_probe=True)
ANY_ROLE: Final = AccessRule(_ALL_ROLES)
DOCUMENTATION: Final = AccessRule(_ALL_ROLES, on_both_ports=True)
APP: Final = AccessRule(roles("app"))
QUESTION: Final = AccessRule(roles("app"), queue="questions", asks=True)
CHAT: Final = AccessRule(roles("app"), queue="questions", size_limit="max_chat_bytes", asks=True)
#: endpoints that read the messages or texts of a chat, but decide nothing
TEXTS: Final = AccessRule(roles("app"), size_limit="max_chat_bytes", asks=True)
READ: Final = AccessRule(OPERATORS)
READ_ALL: Final = AccessRule(OPERATORS, all_tenants=True)
ADMIN: Final = AccessRule(roles(), all_tenants=True)
COMMAND: Final = AccessRule(roles("operator"), all_tenants=True)
LABEL: Final = AccessRule(roles("rater", "operator"))
PERSON: Final = AccessRule(roles("reader", "rater", "operator"))


#: pages for people, who sign in by their browser, have this path or a path below it
PAGES: Final = "/ui"


def is_page(path: str) -> bool:
    return path == PAGES or path.startswith(f"{PAGES}/")
