"""Corrected prices: corrects the dollars in sums of spending, and learns a new ledger with the right dollars. Sums of
sessions and tasks are deleted; the next question of a session or task counts its sum again with the right dollars.

Services use the old ledger until they are started with the label of the new one.
"""

from collections.abc import Callable, Mapping

from ragbandit.router.learning.exclusions import carry_exclusions, next_label
from ragbandit.router.storage.access.corrections import (
    Changes,
    Correction,
    add_correction,
    changes_of,
    check_names,
    corrections_of,
)
from ragbandit.router.storage.access.turn_sums import forget_all_sums
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.errors import Conflict, InvalidInput
from ragbandit.shared.types import Json


def reprice(
    ledger: Ledger,
    correction: Correction,
    *,
    learn: Callable[[str], Mapping[str, Json]] | None,
    dry_run: bool,
    reason: str,
    actor: str,
    now: float,
) -> dict[str, Json]:
    """Correct the dollars of outcomes. Returns facts about the change, and about the new ledger if there is one.

    learn: learns a new ledger of this label and returns facts (`learn_new_ledger`); called if the ledger has learned a
    corrected outcome. None if rewards do not depend on dollars. dry_run: change nothing. Raises InvalidInput for an
    unknown name and if no outcome changes, Conflict if another correction is stored meanwhile, NotReady as `learn`.
    """
    changes, earlier = changes_of(ledger.database, correction, label=ledger.label, now=now)
    facts = _facts(changes)
    if not changes.outcomes:
        check_names(ledger.database, correction, generators=changes.generators)
    if dry_run:
        return {**facts, "label": None}
    if not changes.outcomes:
        no_price = f"; {changes.unpriced} have no price" if changes.unpriced else ""
        remedy = "look at them with --dry-run, or give --factor, or --decision and --dollars"
        raise InvalidInput(f"no outcome gets other dollars{no_price}", remedy=remedy)
    label = next_label(ledger) if learn is not None and changes.learned > 0 else None
    with ledger.database.write() as connection:
        if corrections_of(connection).rules != earlier.rules:
            raise Conflict("another correction was stored meanwhile", remedy="look at it, then give the command again")
        of_ledger = {**facts, "label": ledger.label, "new_label": label}
        stored = add_correction(connection, correction, actor=actor, reason=reason, facts=of_ledger, now=now)
        if label is not None:
            carry_exclusions(connection, label=ledger.label, new_label=label)
        forget_all_sums(connection)
        changes.tally.write(connection, shard=ledger.database.shard)
    done: dict[str, Json] = {"number": stored.number, **facts, "label": label}
    if label is not None and learn is not None:
        done |= learn(label)
    return done


def _facts(changes: Changes) -> dict[str, Json]:
    return {
        "outcomes": changes.outcomes,
        "dollars_before": round(changes.dollars_before, 9),
        "dollars_after": round(changes.dollars_after, 9),
        "unpriced": changes.unpriced,
        "learned": changes.learned,
    }
