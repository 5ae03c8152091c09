"""Verbs `policy show`, `add` ... `kill`: versions of the policy and their rollout, without a running service."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Final

import typer
from rich.markup import escape

from ragbandit.router.cli.console import console, errors, print_json
from ragbandit.router.cli.options import ConfigOption, JsonOption, LabelOption
from ragbandit.router.cli.progress import show_progress
from ragbandit.router.cli.store import actor, open_store, parse_pairs
from ragbandit.router.cli.tables import show, show_rows
from ragbandit.router.learning.exclusions import carry_exclusions, learn_new_ledger, next_label
from ragbandit.router.learning.monitoring.arm_changes import declare_change
from ragbandit.router.rollouts import verbs
from ragbandit.router.rollouts.overview import PolicyList, list_versions, version_detail
from ragbandit.router.rollouts.verbs import Verb, check_reason
from ragbandit.router.rollouts.version_settings import settings_with
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.ledgers import inheritance
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.leases import lease_holder
from ragbandit.shared.errors import Conflict, InvalidInput, NotFound, NotReady
from ragbandit.shared.texts.formats import moment
from ragbandit.shared.types import ArmName, Json, PolicyControl

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="the version")]
ReasonOption = Annotated[str, typer.Option("--reason", help="reason, for the audit log")]
_BY_HAND = "by hand"
#: longest wait for the learner of a ledger that is being retired, seconds
PATIENCE_S: Final = 30.0


def show_versions(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="the version; default: list all")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List all versions with state, start and reason; or show one version.

    One version is shown with its changed settings, its possible verbs and, in shadow, its comparison with the champion.
    """
    with open_store(config) as (_, ledger):
        if name is None:
            _list(list_versions(ledger.database, base=ledger.label), as_json=as_json)
            return
        version = asdict(version_detail(ledger.database, name, base=ledger.label, now=time.time()))
        if as_json:
            print_json(version)
            return
        evidence = version.pop("evidence")
        show(version, as_json=False)
        if evidence is not None:
            console.say(evidence["sentence"])


def _list(versions: PolicyList, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(versions))
        return
    control = versions.control
    if control.killed is not None:
        since = f"by {control.actor} since {moment(control.made_at)}"
        console.print(
            f"[red]KILLED[/red] {escape(f'{_effect_in_words(control)}, {since}: {control.reason}')}", highlight=False
        )
        console.print("`ragbandit policy resume` takes it back")
    none = "no version yet: the configuration decides (`ragbandit policy add --help`)"
    rows = [(v.name, v.state, moment(v.since), v.reason) for v in versions.policies]
    show_rows(("name", "state", "since", "reason"), rows, none=none)


def add(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="version name; default: v1, v2 ...")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="a changed setting, as policy.name=linucb; repeat it")
    ] = None,
    reason: ReasonOption = _BY_HAND,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a draft of a version, which is the configuration with other settings of policy, reward or arms."""
    with open_store(config) as (settings, ledger):
        tree = _parse_changes(changes or ())
        settings_with(settings, tree, label=settings.policy.label)
        version = verbs.add(
            ledger.database, base=ledger.label, changes=tree, name=name, actor=actor(), reason=reason, now=time.time()
        )
        show(asdict(version), as_json=as_json)


def shadow(
    name: NameArgument, reason: ReasonOption = _BY_HAND, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Shadow a version: compute and log its probabilities for every decision. The champion still decides."""
    _perform("shadow", name, reason=reason, config=config, as_json=as_json)


def resume(reason: ReasonOption = _BY_HAND, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Deactivate the kill switch: champion and versions in shadow continue as they were."""
    with open_store(config) as (_, ledger):
        control = verbs.unkill(ledger.database, base=ledger.label, actor=actor(), reason=reason, now=time.time())
        _show_switch(control, as_json=as_json)


def rollback(
    name: NameArgument, reason: ReasonOption = _BY_HAND, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Retire the champion. The previous champion decides again."""
    _perform("rollback", name, reason=reason, config=config, as_json=as_json)


def retire(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="the version")] = None,
    label: Annotated[str | None, typer.Option(help="a ledger that no service uses, in place of a version")] = None,
    reason: ReasonOption = _BY_HAND,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Retire a version: its ledger is kept, and no decision waits for it any more.

    With --label, a ledger is retired: stop its routers and its learner first. A router that is started with the label
    again reactivates the ledger, which inherits every decision that it has not learned or closed. Repeat the command
    after an interruption.
    """
    if (name is None) == (label is None):
        raise InvalidInput("either NAME or --label is needed", field="label", remedy="give one of the two")
    if name is not None:
        _perform("retire", name, reason=reason, config=config, as_json=as_json)
        return
    with open_store(config, label=label) as (settings, ledger), show_progress(errors) as progress:
        if label == settings.policy.label:
            message = f"the ledger {label!r} is the one that this configuration serves, so it cannot be retired"
            remedy = "set policy.label to another one and restart the services first"
            raise Conflict(message, field="policy.label", remedy=remedy)
        lease_s = settings.learning.lease_s
        batches = _retire(ledger, lease_s=lease_s, report=lambda done: progress("batches", done, 0))
    show({"retired": label, "batches": batches}, as_json=as_json)


def _retire(ledger: Ledger, *, lease_s: float, report: Callable[[int], None]) -> int:
    """Retire the ledger in batches. Returns the number of batches. Raises NotReady if a learner holds the ledger."""
    holder, batches = lease_holder("retire"), 0
    try:
        while ledger.acquire(holder=holder, lease_s=lease_s, patience_s=PATIENCE_S):
            step = inheritance.retire(ledger, holder=holder, now=time.time())
            if step == "done":
                return batches
            batches += step == "batch"
            report(batches)
        message = f"a learner works on the ledger {ledger.label!r}, so it cannot be retired now"
        raise NotReady(message, remedy="stop that learner, or its `ragbandit up`, then try again")
    finally:
        ledger.release(holder=holder)


def promote(
    name: NameArgument,
    force: Annotated[
        bool, typer.Option("--force", help="promote whatever the evidence says; the audit log notes it")
    ] = False,
    reason: ReasonOption = _BY_HAND,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a version in shadow the champion, if the log shows that it is better. Routers switch without a restart."""
    _perform("promote", name, reason=reason, config=config, as_json=as_json, force=force)


def _perform(verb: Verb, name: str, *, reason: str, config: str | None, as_json: bool, **more: Any) -> None:
    with open_store(config) as (settings, ledger):
        act = verbs.Act(verb=verb, name=name, base=ledger.label, actor=actor(), reason=reason, now=time.time(), **more)
        show(asdict(verbs.perform(ledger.database, act, settings=settings.rollout)), as_json=as_json)


def kill(
    arm: Annotated[
        str | None, typer.Argument(metavar="[ARM]", help="arm for every question; default: the champion decides")
    ] = None,
    reason: ReasonOption = _BY_HAND,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop all shadows; with ARM, stop the champion too: every router uses this arm from its next decision on."""
    with open_store(config) as (settings, ledger):
        offered, by = tuple(settings.arms), actor()
        control = verbs.kill(
            ledger.database, base=ledger.label, arm=arm, offered=offered, actor=by, reason=reason, now=time.time()
        )
        _show_switch(control, as_json=as_json)


def _show_switch(control: PolicyControl, *, as_json: bool) -> None:
    show(asdict(control) if as_json else {"switch": _effect_in_words(control), **asdict(control)}, as_json=as_json)


def _effect_in_words(control: PolicyControl) -> str:
    if control.killed is None:
        return "off: champion and shadows continue where they were"
    return f"every question gets {control.arm}" if control.killed == "arm" else "the champion decides alone"


def _parse_changes(texts: Sequence[str]) -> dict[str, Any]:
    """Parse settings: `policy.params.ridge=2` gives {"policy": {"params": {"ridge": 2}}}. Raises InvalidInput."""
    changes: dict[str, Any] = {}
    for key, value in parse_pairs(texts, form="SECTION.NAME=VALUE", field="set", remedy="policy.name=linucb"):
        names = key.split(".")
        section = changes
        for name in names[:-1]:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                message = f"{name!r:.40} is set as a whole already"
                raise InvalidInput(message, field="set", remedy="name each setting once")
        section[names[-1]] = value
    return changes


def restart(
    name: Annotated[str, typer.Argument(metavar="NAME", help="the arm")],
    reason: ReasonOption = _BY_HAND,
    label: Annotated[str | None, typer.Option(help="only this ledger, for example of a version: main.v1")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Declare that an arm answers differently from now on: with another model, index or prompt under the same name.

    Every ledger resets the arm before it learns the first decision made after this moment. The arm's estimates stay,
    but count for little, and the arm is explored again.
    """
    with open_store(config, label=label) as (settings, ledger):
        if name not in settings.arms:
            remedy = f"one of: {', '.join(settings.arms)}"
            raise NotFound(f"the configuration has no arm {name!r:.80}", field="name", remedy=remedy)
        check_reason(reason)
        only = None if label is None else ledger.label
        change = declare_change(
            ledger.database, ArmName(name), actor=actor(), reason=reason, now=time.time(), label=only
        )
        show(asdict(change), as_json=as_json)


def relearn(
    to: Annotated[
        str | None, typer.Option(metavar="LABEL", help="label of the new ledger; repeat it after an interruption")
    ] = None,
    reason: ReasonOption = _BY_HAND,
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Learn a ledger again from the whole store, by the rules of this release.

    Services use the old ledger while the new one is learned. Afterwards set policy.label to the new ledger and restart
    the services, one after the other. Exclusions of feedback stay in force.
    """
    check_reason(reason)
    with open_store(config, label=label) as (settings, ledger), show_progress(errors) as progress:
        new = to or next_label(ledger)
        with ledger.database.write() as connection:
            if to is None:
                carry_exclusions(connection, label=ledger.label, new_label=new)
            facts: dict[str, Json] = {"label": new, "reason": reason}
            record(connection, actor=actor(), action="ledger.relearn", target=f"ledger:{ledger.label}", facts=facts)
        errors.say(f"the new ledger is {new}; if this is interrupted: `ragbandit policy relearn --to {new}`")
        done = learn_new_ledger(
            ledger,
            label=new,
            make_learner=partial(make_learner, settings),
            now=time.time(),
            progress=lambda closed: progress("decisions", closed, 0),
        )
    show(done, as_json=as_json)
    if not as_json:
        errors.say(f"services go on with {ledger.label}: set policy.label to {new} and restart them in turn")
