"""Lessons: the updates of a ledger, for a policy to learn in their order; and the policy that learns them."""

from collections.abc import Iterator

from ragbandit.router.config.context_schema import reads_text
from ragbandit.router.config.settings import Settings
from ragbandit.router.policies import protected, with_settings
from ragbandit.router.policies.base import Policy, is_lean, schema_of
from ragbandit.router.storage.ledgers.lean_updates import lean_updates
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.types import ERASED, Decision, Update


def policy_of(settings: Settings) -> Policy:
    """The configured policy, fresh, with the schema of the context, held back to the incumbent if there is one."""
    configured = settings.policy
    params = with_settings(
        configured.name,
        params=configured.params,
        incumbent=configured.incumbent is not None,
        schema=settings.context,
    )
    return protected(configured.name, params=params, settings=configured)


def lessons(ledger: Ledger, *, policy: Policy, after: int, upto: int | None = None) -> Iterator[Update]:
    """The updates with seq > after (and <= upto), in order, with as much of each as this policy learns from."""
    if not is_lean(policy):
        return ledger.read(after=after, upto=upto)
    schema = schema_of(policy)
    return lean_updates(ledger, after=after, upto=upto, context=bool(schema), text=reads_text(schema))


def is_erased_for(policy: Policy, decision: Decision) -> bool:
    """Whether what this policy needs of the decision was erased."""
    erased = decision.facts.get(ERASED)
    features_gone = erased == "texts and features" and "features" in policy.needs
    reads = "text" in policy.needs or bool(schema_of(policy))
    return features_gone or (erased is not None and reads)
