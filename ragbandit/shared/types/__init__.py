"""Domain values: frozen, keyword-only dataclasses. Times are seconds since 1970 (UTC)."""

from ragbandit.shared.types.conversations import *
from ragbandit.shared.types.facts import *
from ragbandit.shared.types.ledger import *
from ragbandit.shared.types.names import *
from ragbandit.shared.types.outcomes import *
from ragbandit.shared.types.request_facts import *
