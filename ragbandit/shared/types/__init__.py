"""Domain values: frozen, keyword-only dataclasses without behaviour beyond derived facts.

Times are seconds since the epoch (UTC, float). Probabilities are float64. Money and energy are not measured
yet; every cost is a count or a number of seconds, so that any price can be put on it later.

What the three modules define is imported from this package.
"""

from ragbandit.shared.types.ledger import *
from ragbandit.shared.types.names import *
from ragbandit.shared.types.outcomes import *
