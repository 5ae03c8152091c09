"""Verbs `policy list`, `show`, `add`, `shadow`, `canary` ... `kill`, `unkill`: versions that roll out by evidence.

They work on the database, so that a switch can be thrown while service, Redis and learner are down.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer
import yaml
from rich.markup import escape

from ragbandit.router.cli.access import actor
from ragbandit.router.cli.console import ConfigOption, JsonOption, console, print_json, show_rows
from ragbandit.router.cli.facts import show
from ragbandit.router.cli.store import opened
from ragbandit.router.rollouts import verbs
from ragbandit.router.rollouts.overview import PolicyList, changed_settings, detail, overview
from ragbandit.router.rollouts.verbs import Verb
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.formats import moment, percent
from ragbandit.shared.types import PolicyControl, PolicyVersion

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="the version")]
ReasonOption = Annotated[str, typer.Option("--reason", help="why, for the audit log")]
_BY_HAND = "by hand"


def list_versions(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List all versions: state, share, since when, and what each waits for."""
    with opened(config) as (_, ledger):
        versions = overview(ledger.database, base=ledger.label)
        if as_json:
            print_json(asdict(versions))
            return
        _print_switch(versions)
        show_rows(
            ("name", "state", "share", "since", "waits for", "reason"),
            (
                (one.name, one.state, percent(one.weight), moment(one.since), one.waits_for, one.reason)
                for one in versions.policies
            ),
            none="no version yet: the configuration decides (ragbandit policy add --help)",
        )


def _print_switch(versions: PolicyList) -> None:
    control = versions.control
    if control.killed is None:
        return
    since = f"by {control.actor} since {moment(control.made_at)}"
    console.print(f"[red]KILLED[/red] {escape(f'{_decides(control)}, {since}: {control.reason}')}", highlight=False)
    console.print("ragbandit policy unkill takes it back")


def show_version(name: NameArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show a version: what it changes, what it waits for, what can be done, and the newest verdicts."""
    with opened(config) as (settings, ledger):
        facts = asdict(detail(ledger.database, name, base=ledger.label, settings=settings.rollout))
        if as_json:
            print_json(facts)
            return
        verdicts = facts.pop("verdicts")
        show(_in_words(facts), as_json=False)
        for one in verdicts[:10]:
            line = f"{moment(one['made_at'])} {one['kind']} at {percent(one['weight'])}: {one['reason']}"
            console.print(escape(line), highlight=False, soft_wrap=True)


def add(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="its name; default: v1, v2 ...")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="a setting that differs: policy.name=linucb; repeat it")
    ] = None,
    reason: ReasonOption = _BY_HAND,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a version as a draft: the configuration with settings of policy, reward or arms changed."""
    with opened(config) as (settings, ledger):
        given = _changes(changes or ())
        changed_settings(settings, given, label=settings.policy.label)
        version = verbs.add(
            ledger.database, base=ledger.label, changes=given, name=name, actor=actor(), reason=reason, now=time.time()
        )
        _tell(version, as_json=as_json)


def shadow(
    name: NameArgument, reason: ReasonOption = _BY_HAND, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Compute its pmf beside the champion's for every decision, and log it; nothing of it is served."""
    _perform("shadow", name, reason=reason, config=config, as_json=as_json)


def step(
    name: NameArgument, reason: ReasonOption = _BY_HAND, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Give a canary the next share of `rollout.steps`; from shadow the first one."""
    _perform("step", name, reason=reason, config=config, as_json=as_json)


def pause(
    name: NameArgument, reason: ReasonOption = _BY_HAND, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Compute and serve nothing of it until it is resumed; it goes on learning."""
    _perform("pause", name, reason=reason, config=config, as_json=as_json)


def resume(
    name: NameArgument, reason: ReasonOption = _BY_HAND, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Let a paused one go on in the state that it was in."""
    _perform("resume", name, reason=reason, config=config, as_json=as_json)


def rollback(
    name: NameArgument, reason: ReasonOption = _BY_HAND, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Take it out; of a champion: let the one before it decide again."""
    _perform("rollback", name, reason=reason, config=config, as_json=as_json)


def retire(
    name: NameArgument, reason: ReasonOption = _BY_HAND, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Give it up: its ledger is kept, and no decision waits for it any more."""
    _perform("retire", name, reason=reason, config=config, as_json=as_json)


def canary(
    name: NameArgument,
    weight: Annotated[
        float | None, typer.Option(help="share of its pmf in what is served; default: the first of rollout.steps")
    ] = None,
    reason: ReasonOption = _BY_HAND,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve a share of its pmf."""
    _perform("canary", name, reason=reason, config=config, as_json=as_json, weight=weight)


def promote(
    name: NameArgument,
    force: Annotated[bool, typer.Option("--force", help="whatever the evidence says; it is marked")] = False,
    reason: ReasonOption = _BY_HAND,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let it decide from now on, if the evidence says that it is better; routers take it over without a restart."""
    _perform("promote", name, reason=reason, config=config, as_json=as_json, force=force)


def _perform(verb: Verb, name: str, *, reason: str, config: str | None, as_json: bool, **more: Any) -> None:
    with opened(config) as (settings, ledger):
        act = verbs.Act(verb=verb, name=name, base=ledger.label, actor=actor(), reason=reason, now=time.time(), **more)
        _tell(verbs.perform(ledger.database, act, settings=settings.rollout), as_json=as_json)


def kill(
    arm: Annotated[
        str | None, typer.Argument(metavar="[ARM]", help="the arm for every question; default: the champion alone")
    ] = None,
    reason: ReasonOption = _BY_HAND,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop all candidates, and with ARM the champion too: that arm answers, from the next decision of every router."""
    with opened(config) as (settings, ledger):
        throw = partial(verbs.kill, arm=arm, offered=tuple(settings.arms))
        _switch(
            throw(ledger.database, base=ledger.label, actor=actor(), reason=reason, now=time.time()), as_json=as_json
        )


def unkill(reason: ReasonOption = _BY_HAND, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Take the switch back: champion and candidates go on where they were."""
    with opened(config) as (_, ledger):
        control = verbs.unkill(ledger.database, base=ledger.label, actor=actor(), reason=reason, now=time.time())
        _switch(control, as_json=as_json)


def _switch(control: PolicyControl, *, as_json: bool) -> None:
    facts = asdict(control)
    if not as_json:
        facts = {"switch": _decides(control), **_in_words(facts | {"killed": None, "arm": None})}
    show(facts, as_json=as_json)


def _tell(version: PolicyVersion, *, as_json: bool) -> None:
    facts = asdict(version)
    show(facts if as_json else _in_words(facts), as_json=as_json)


def _decides(control: PolicyControl) -> str:
    """What the switch has routers do."""
    if control.killed is None:
        return "off: champion and candidates go on where they were"
    return f"every question gets {control.arm}" if control.killed == "arm" else "the champion decides alone"


def _in_words(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of a version or of the switch for people: shares in percent, lists and what was seen as sentences."""
    words = {key: value for key, value in facts.items() if value is not None}
    words |= {key: percent(words[key]) for key in ("weight", "next_weight") if key in words}
    if "possible" in facts:
        words["possible"] = ", ".join(facts["possible"]) or "nothing"
    if "killed" in words:
        words["killed"] = "the switch is thrown: ragbandit policy list says how"
    if "recent" in words:
        last = words["recent"]["last_fault"]
        seen = f"asked for {words['recent']['decisions']} of the newest decisions, {words['recent']['faults']} faults"
        words["recent"] = seen if last is None else f"{seen}, the last one: {last}"
    return words


def _changes(given: Sequence[str]) -> dict[str, Any]:
    """What `policy.params.ridge=2` and others say: {"policy": {"params": {"ridge": 2}}}. Raises InvalidInput."""
    changes: dict[str, Any] = {}
    for each in given:
        key, equals, text = each.partition("=")
        names = key.strip().split(".")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            equals = ""
        if not equals or len(names) < 2 or not all(names):
            raise InvalidInput(f"{each!r:.80} is not SECTION.NAME=VALUE", field="set", remedy="policy.name=linucb")
        section = changes
        for name in names[:-1]:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise InvalidInput(
                    f"{name!r:.40} is set as a whole already", field="set", remedy="name each setting once"
                )
        section[names[-1]] = value
    return changes
