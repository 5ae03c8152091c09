"""Findings: faults of an installation and their remedies, for `validate`, `status`, /ready and the overview page.

Checks only read. Functions import database engines and Redis clients themselves, so that `validate` loads them only if
they are configured.
"""

import contextlib
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ragbandit.router.config.finding import Finding, Severity
from ragbandit.router.operation.price_findings import budgeted_keys, findings_of_costs, findings_of_prices, has_budget
from ragbandit.shared.additions import add_fault, additions, arm_parts, faults, offered_places_except
from ragbandit.shared.errors import QueueError, RagBanditError
from ragbandit.shared.plugins import declared_classes
from ragbandit.shared.texts.formats import counted, did_you_mean, duration, known_choices, moment, percent
from ragbandit.shared.types import CHOOSES_ARM

if TYPE_CHECKING:
    from redis import Redis

    from ragbandit.router.config.rules import Rule
    from ragbandit.router.config.settings import Settings
    from ragbandit.router.learning.status import Status
    from ragbandit.router.queue.presence import ProcessCard
    from ragbandit.router.reporting.reading import Report
    from ragbandit.router.storage.jobs.judged_arms import JudgedArm
    from ragbandit.router.storage.sql.database import Database
    from ragbandit.shared.types import ArmName

#: parts of /ready whose failure makes answers and learning late, while requests still succeed
DELAYED: Final = frozenset({"redis", "policy"})
#: age in seconds of feedback that is not learned yet: a warning above LATE_S, a problem above STUCK_S
LATE_S: Final = 60.0
STUCK_S: Final = 600.0
#: difference between two clocks in seconds: a warning from APART_S, a problem from WRONG_S
APART_S: Final = 1.0
WRONG_S: Final = 60.0
#: free bytes of a disk: a warning below LITTLE, a problem below NEARLY_NONE
LITTLE: Final = 2_000_000_000
NEARLY_NONE: Final = 200_000_000
#: share of an arm's answers that are not judged, since a text instructs the judge: a finding from LARGE_SHARE on, and
#: from a difference of UNEVEN_SHARES between two arms on; arms with fewer than FEW_ANSWERS are not compared
LARGE_SHARE: Final = 0.1
UNEVEN_SHARES: Final = 0.05
FEW_ANSWERS: Final = 100
#: price factor of a dollar budget above which there is a finding; smaller factors hardly change the choice of arms
NOTICED: Final = 1.5
#: largest number of outcomes searched for failures of servers, newest first
MOST_OUTCOMES: Final = 200


def run_check(subject: str, check: Callable[[], Iterable[Finding] | None], *, consequence: str = "") -> list[Finding]:
    """Run a check and return its findings. An error becomes a problem; `consequence` names its consequence."""
    try:
        return list(check() or ())
    except (RagBanditError, OSError, ValueError) as error:
        what = "; ".join(filter(None, (getattr(error, "message", str(error)).rstrip("."), consequence)))
        return [Finding("problem", subject, what, getattr(error, "remedy", None) or "start it, or correct its address")]


def is_problem(findings: Iterable[Finding]) -> bool:
    return any(finding.severity == "problem" for finding in findings)


def findings_of_parts(parts: Mapping[str, str]) -> list[Finding]:
    """Findings of parts that do not work. parts: name -> state, from `Readiness.states`."""
    broken = ((name, state) for name, state in sorted(parts.items()) if state != "ok")
    return [Finding("warning" if name in DELAYED else "problem", name, state) for name, state in broken]


def findings_of_settings(settings: "Settings", *, database: "Database | None" = None) -> Iterator[Finding]:
    """Findings about settings that are valid one by one, but together have an unexpected effect. database: see
    `findings_of_prices`.
    """
    yield from _addition_findings(settings)
    sqlite, redis_url = settings.database.startswith("sqlite"), settings.redis_url
    server = settings.server
    if len(settings.arms) == 1:
        remedy = "add an arm; `ragbandit init --force --documents DIR` makes arms that search"
        yield Finding("warning", "arms", f"{next(iter(settings.arms))} is the only arm: nothing to route", remedy)
    yield from _rule_findings(settings)
    budgeted = [f"the tenant {name}" for name, tenant in settings.tenants.items() if has_budget(tenant.model_dump())]
    yield from _refused_aliases(settings, spenders=budgeted)
    yield from _unknown_aliases(settings)
    yield from _turn_limit_findings(settings)
    yield from findings_of_prices(settings, database=database)
    for what in _budget_warnings(settings):
        yield Finding("warning", "tenants", what, "see docs/price.md")
    if not sqlite and redis_url is None:
        what = "it is not set, and the database is PostgreSQL: workers on other hosts find questions only by polling"
        yield Finding("warning", "redis_url", what, "set REDIS_URL to one Redis for all hosts")
    if redis_url is None and not server.open_metrics:
        return
    from ragbandit.router.serving.setup.bootstrap import is_loopback  # late: it loads a database engine

    host = urlsplit(redis_url or "").hostname
    if sqlite and host and not is_loopback(host):
        what = "it is on another host, but the database is a SQLite file here: workers there find no decisions"
        remedy = "run every worker here, or set DATABASE_URL to a PostgreSQL database"
        yield Finding("warning", "redis_url", what, remedy)
    if server.open_metrics and not is_loopback(server.host if server.admin_port is None else server.admin_host):
        what = "other machines may read names of arms and tenants, and how much you serve"
        remedy = "set server.admin_port, or give the scraper a key of the role reader"
        yield Finding("warning", "server.open_metrics", what, remedy)


def _addition_findings(settings: "Settings") -> Iterator[Finding]:
    """Additions that are left out, as a whole or in part."""
    from ragbandit.router.config.section import EXTENDED
    from ragbandit.router.policies import built_in_policies

    built_in_policies()  # loaded, so that an addition's policy with a name of the core becomes a fault
    if settings.worker_arms:  # names of additions that are also the core's become faults
        offered_places_except(declared_classes("ragbandit.strategies.arms", attribute="arm"), hook="arms")
    known = ", ".join(sorted(filter(None, EXTENDED)))
    for name, addition in additions().items():
        for section in addition.sections.keys() - EXTENDED:
            add_fault(name, f"the section {section!r} takes no settings of additions; {known} and the top level do")
    for name, what in faults().items():
        remedy = f"correct the folder {name} of ragbandit/additions, or delete it"
        yield Finding("problem", f"the addition {name}", f"it cannot be used: {what}", remedy)


def _turn_limit_findings(settings: "Settings") -> Iterator[Finding]:
    """A limit of tasks that is never reached."""
    turns, most = settings.conversation.task_limit.turns, settings.conversation.turns_most
    if turns is not None and turns > most:
        what = f"it is never reached: a task ends after {most} turns (conversation.turns_most)"
        yield Finding("warning", "conversation.task_limit.turns", what, "lower it, or raise turns_most")


def _budget_warnings(settings: "Settings") -> Iterator[str]:
    """Warnings about dollar budgets: why a higher cost weight cannot slow down spending, and which callers get 403."""
    if not any(tenant.dollars_per_day or tenant.dollars_per_month for tenant in settings.tenants.values()):
        return
    from ragbandit.router.policies import make_policy
    from ragbandit.router.policies.base import serves_prices

    policy, reward = settings.policy, settings.reward
    if not serves_prices(make_policy(policy.name, params=policy.params)):
        yield f"policy.name: {policy.name} has one weight of cost for all questions: dollar budgets only stop (429)"
    elif reward.weight == 0.0:
        yield "reward.weight is 0: no factor raises it, so dollar budgets pace no question that names no price"
    if not reward.cost.get("dollars"):
        yield "reward.cost prices no dollars: as a dollar budget is spent, the price of other terms rises"
    if len(settings.worker_arms) < len(settings.arms):
        yield f"a caller that names some, not all arms is refused (403) unless its key has {CHOOSES_ARM}=true"


def _rule_findings(settings: "Settings") -> Iterator[Finding]:
    """Rules that take the incumbent or the holdback's arm from some questions, that callers can evade, or that are
    incomplete.
    """
    from ragbandit.router.config.rules import named_rules

    for key in settings.rule_book.open_keys:
        what = f"a rule reads context.{key}, which callers choose, and does not apply to questions without a value"
        remedy = "let a proxy set it (proxy: true), or name null in a condition on it (docs/context.md)"
        yield Finding("warning", "rules", what, remedy)
    policy = settings.policy
    compared = {"policy.incumbent": policy.incumbent}
    if policy.holdback is not None:
        compared["policy.holdback"] = policy.holdback.arm
    for name, rule in named_rules(settings.rules):
        yield from _findings_of_rule(name, rule, settings=settings)
        for setting, arm in compared.items():
            if arm is not None and arm not in rule.arms:
                what = f"{name} does not allow {arm}, the arm of {setting}: reports compare it only on other questions"
                yield Finding("warning", "rules", what, "allow it there, or accept that")


def _findings_of_rule(name: str, rule: "Rule", *, settings: "Settings") -> Iterator[Finding]:
    """Probably misspelled tenants, parts of arms that the rule does not name, and missing `models` of the rule."""
    for tenant in rule.tenants:
        advice = did_you_mean(tenant, settings.tenants) if tenant not in settings.tenants else ""
        if advice:
            what = f"{name} names the tenant {tenant}, which the setting tenants does not have"
            yield Finding("warning", "rules", what, f"{advice}else ignore this")
    from ragbandit.router.policies import static_needs

    asked = arm_parts()
    for arm in rule.arms:
        params = settings.arms[arm]
        parts = [params.get(part) for part in asked.get(str(params.get("class", arm)), ())]
        named = [part for part in parts if isinstance(part, str)]  # other parts are definitions
        others = [part for part in named if part in settings.arms and part not in rule.arms]
        if others:
            what = f"{name} allows {arm}, which asks {', '.join(others)}: an arm includes its parts"
            yield Finding("warning", "rules", what, "allow only arms whose parts may answer, or accept that")
    rewrite = settings.conversation.rewrite
    models = {
        "judge": settings.judge.generator is not None,
        "rewrite": rewrite.by != "off" and (rewrite.generator or settings.generator).name == "openai",
        "pick": "pick" in static_needs(settings.policy.name),
        "embeddings": getattr(settings, "embeddings", None) is not None,
    }
    configured = ", ".join(model for model, is_on in models.items() if is_on)
    if rule.models is None and configured:
        what = f"{name} does not say whether {configured} may read such questions, so none of these models does"
        yield Finding("warning", "rules", what, f"add models: [{configured}], or some of them, or models: []")


def _refused_aliases(settings: "Settings", *, spenders: Sequence[str]) -> Iterator[Finding]:
    """Aliases that name an arm, which keys under a dollar budget may not choose. spenders: names of such keys."""
    from ragbandit.router.config.server import ARM_PREFIXES

    named = [
        f"{alias} is {name}" for alias, name in settings.server.model_aliases.items() if name.startswith(ARM_PREFIXES)
    ]
    if named and spenders:
        what = f"{', '.join(named)}, and {', '.join(spenders)} may not choose an arm under a dollar budget: 403"
        command = f"`ragbandit keys create --name NAME --role app --scope {CHOOSES_ARM}=true`"
        remedy = f"give the key the scope {CHOOSES_ARM}=true ({command}), or let the alias be auto"
        yield Finding("warning", "server.model_aliases", what, remedy)


def _unknown_aliases(settings: "Settings") -> Iterator[Finding]:
    """Aliases of models that no worker answers: requests for them get 404."""
    prices = [f"auto:{name}" for name in settings.cost_weights]
    models = ["ragbandit", "auto", *prices, *(f"arm/{arm}" for arm in settings.worker_arms)]
    known = {*models, *(f"ragbandit/{name.removeprefix('arm/')}" for name in models)}
    for alias, name in settings.server.model_aliases.items():
        if name not in known:
            what = f"{alias} is {name}, which no worker answers here: every request for it gets 404"
            yield Finding("problem", "server.model_aliases", what, known_choices(models[1:], given=name))


def findings_of_disk(settings: "Settings") -> Iterator[Finding]:
    """Findings about disks with the database, snapshots or logs, if they are almost full."""
    database = settings.database.removeprefix("sqlite:///")
    devices = {}
    for place in (settings.data_dir, settings.snapshot_root, database):
        if "://" not in place:
            path = Path(place).absolute()
            folder = next(parent for parent in (path, *path.parents) if parent.exists())
            devices[folder.stat().st_dev] = folder
    for folder in devices.values():
        usage = shutil.disk_usage(folder)
        free = usage.free
        if usage.total and free < LITTLE:  # the total is 0 for file systems without files, such as /proc
            what = f"{free / 1e9:.1f} GB are free at {folder}: when it is full the service replies 503"
            remedy = "make room: remove what is not RagBandit's, or give it a larger disk"
            yield Finding("problem" if free < NEARLY_NONE else "warning", "disk", what, remedy)


def findings_of_ledger(state: "Status", *, rebuilding: bool = False) -> Iterator[Finding]:
    """Findings of a ledger's status. rebuilding: whether the policy is being learned again from the ledger."""
    counts, today = state.counters, state.judge.today
    if not counts.balanced:
        remedy = "run `ragbandit verify`; `ragbandit verify --recount` corrects them"
        yield Finding("problem", "counters", "they do not add up: rows were changed from outside", remedy)
    if state.lag_s > LATE_S and state.caught_up_s is not None:
        what = f"it has {state.backlog:,} decisions to learn, and will have caught up in {duration(state.caught_up_s)}"
        yield Finding("warning", "learner", what, "nothing to do while this time falls")
    elif state.lag_s > LATE_S:
        severity: Severity = "problem" if state.lag_s > STUCK_S else "warning"
        remedy = "check that a learner runs (`ragbandit worker --queue learn`), then its log"
        yield Finding(severity, "learner", f"feedback has waited for {duration(state.lag_s)}", remedy)
    if rebuilding:
        what = "it is being learned again, and another policy decides meanwhile"
        yield Finding("warning", "policy", what, "check that a learner runs; nothing else to do")
    if state.learning is not None and state.learning.state == "drifting":
        yield Finding("warning", "drift", state.learning.sentence, state.learning.remedy)
    quarantined = "`ragbandit feedback quarantined` says why"
    for count, about, noun, what, remedy in (
        (
            state.missing_outcome,
            "outcomes",
            "decision",
            "with feedback and no outcome: unlearned",
            "report each outcome",
        ),
        (counts.quarantined, "learner", "decision", "could not be learned", quarantined),
        (counts.unseen, "learner", "decision", "without a place in this ledger", "start its learner, or retire it"),
        (today.get("given_up"), "judge", "answer", "could not be judged today", "see its log"),
        (today.get("skipped"), "judge", "answer", "not judged today: too many waited", "see docs/judge.md"),
        (today.get("suspicious"), "judge", "answer", "with texts that address the judge", "see docs/judge.md"),
    ):
        if count:
            yield Finding("warning", about, f"{counted(count, noun)} {what}", remedy)
    yield from _suspicious_text_findings(state.judge.arms)


def _suspicious_text_findings(arms: "Mapping[ArmName, JudgedArm]") -> Iterator[Finding]:
    """A finding if many answers of an arm contain texts that instruct the judge, or many more than of another arm."""
    shares = {arm: one.share for arm, one in arms.items() if one.answers >= FEW_ANSWERS}
    if not shares:
        return
    most, least = max(shares, key=shares.__getitem__), min(shares.values())
    if shares[most] >= LARGE_SHARE or shares[most] - least >= UNEVEN_SHARES:
        uneven = f", of others as few as {percent(least)}" if shares[most] > least else ""
        what = f"{percent(shares[most])} of the answers of {most} instruct it, so they are not judged{uneven}"
        yield Finding("warning", "judge", what, "read some of them: see docs/judge.md")


def findings_of_store(database: "Database", *, settings: "Settings", now: float) -> list[Finding]:
    """Findings about the store: its schema, clocks, newest rows and dollar budgets."""
    checks = (
        *(_schema_findings, _limited_row_findings, _clock_findings, findings_of_costs),
        *(_sample_ratio_findings, _budget_findings, _alias_findings, _failure_findings, _gone_model_findings),
    )
    return run_check("database", lambda: chain.from_iterable(check(database, settings, now) for check in checks))


def _schema_findings(database: "Database", _: "Settings", __: float) -> Iterator[Finding]:
    from ragbandit.router.storage.sql.schema import revision_of
    from ragbandit.router.storage.sql.tables import SCHEMA_REVISION

    with database.read() as connection:
        current = revision_of(connection)
    if current != SCHEMA_REVISION:
        what = f"it is {current}; this version of RagBandit was written for {SCHEMA_REVISION}, but can use it"
        remedy = "complete the upgrade: one version on every host, then `ragbandit migrate`"
        yield Finding("warning", "schema", what, remedy)


def _limited_row_findings(database: "Database", settings: "Settings", _: float) -> Iterator[Finding]:
    from ragbandit.router.storage.rows.filling import limited_rows

    with database.read() as connection:
        count = limited_rows(connection, label=settings.policy.label)
    if count:
        what = f"a former release learned {counted(count, 'decision')} that a limit of a session or task made"
        yield Finding("warning", "limits", what, "learn again without them: `ragbandit policy relearn`")


def _clock_findings(database: "Database", _: "Settings", now: float) -> Iterator[Finding]:
    from sqlalchemy import func, select

    from ragbandit.router.storage.access.audit_log import CLOCK_ACTION, last_entries
    from ragbandit.router.storage.sql.tables import decisions
    from ragbandit.shared.processes.steady_clock import SLACK_S

    with database.read() as connection:
        found = last_entries(connection, action=CLOCK_ACTION)
        newest = connection.execute(select(func.max(decisions.c.made_at))).scalar()
    if newest is not None and newest > now + SLACK_S:
        what = (
            f"the newest decision was made {duration(newest - now)} after now: a clock was ahead, or this one is behind"
        )
        yield Finding("warning", "clock", what, "set the clocks of all hosts (NTP); nothing is lost")
    for entry in found:
        if entry.facts.get("ahead_s"):
            ahead = duration(float(str(entry.facts["ahead_s"])))
            what = f"the clock of {entry.target} is {ahead} ahead, noticed at {moment(entry.made_at)}"
            effect = "for an hour nothing is deleted, given up or asked again because of it"
            yield Finding("problem", "clock", f"{what}; {effect}", "set the clock of this host (NTP)")


def month_report(database: "Database", *, settings: "Settings", now: float) -> "Report":
    """The report of the last 30 days. Raises StoreError."""
    from ragbandit.router.reporting.reading import ReportScope
    from ragbandit.router.reporting.report import report

    scope = ReportScope.of(settings, label=settings.policy.label, since=now - 30 * 86_400.0, until=now)
    return report(database, scope, policy=settings.policy, now=now)


def findings_of_report(month: "Report") -> list[Finding]:
    """Findings of the report of the last 30 days."""
    from ragbandit.router.reporting.next_steps import options_of, rating_advice

    steps = month.advice, rating_advice(month, options=options_of(month, now=month.until))
    return [Finding("advice", "routing", text) for text in steps if text is not None]


def _sample_ratio_findings(database: "Database", settings: "Settings", now: float) -> Iterator[Finding]:
    from ragbandit.router.learning.monitoring.sample_ratio import recent_sample_ratio

    uneven = recent_sample_ratio(database, policy=settings.policy.label, now=now)
    if uneven is not None:
        yield Finding("warning", "sample ratio", uneven.sentence)


def _budget_findings(database: "Database", settings: "Settings", now: float) -> Iterator[Finding]:
    from ragbandit.router.operation.budget_words import raised_in_words, state_in_words
    from ragbandit.router.operation.budgets import budget_states, period_bounds

    for budget, sums in budget_states(database, tenants=settings.tenants, now=now):
        if budget.spent_of(sums) >= budget.dollars:
            effect = "are refused (429)" if budget.stop else "go to the cheapest arm"
            _, end = period_bounds(budget.period, now=now)
            what = f"{state_in_words(budget, sums, now=now)}: its questions {effect} until {moment(end)}"
        else:
            what = raised_in_words(budget, sums, database=database, policy=settings.policy, now=now, above=NOTICED)
        if what:
            yield Finding("warning", "dollar budgets", what, f"wait, or raise {budget.setting}")


def _alias_findings(database: "Database", settings: "Settings", now: float) -> Iterator[Finding]:
    """Aliases that name an arm, which keys with a budget of their own may not choose."""
    if not settings.server.model_aliases:
        return
    keys = budgeted_keys(database, now=now)
    spenders = [f"the key {key.name or key.public_id}" for key in keys if key.scopes.get(CHOOSES_ARM) is not True]
    yield from _refused_aliases(settings, spenders=spenders[:3])


def _failure_findings(database: "Database", settings: "Settings", now: float) -> Iterator[Finding]:
    from sqlalchemy import select

    from ragbandit.router.storage.sql.json_columns import json_object
    from ragbandit.router.storage.sql.tables import decisions, outcomes
    from ragbandit.shared.model_servers.failures import failure_of, successor_of
    from ragbandit.shared.types import ABANDONED, DIED

    newest = select(*outcomes.c["decision_id", "made_by", "status", "stop_reason", "run_by"])
    newest = newest.where(outcomes.c.made_at > now - 3600.0).order_by(outcomes.c.made_at.desc()).limit(MOST_OUTCOMES)
    recent = newest.subquery()
    is_same = decisions.c.id == recent.c.decision_id
    columns = decisions.c.arm, recent.c.made_by, recent.c.stop_reason
    rows = select(*columns).join_from(recent, decisions, is_same)
    is_ours = recent.c.run_by == "worker"  # a caller may report any stop reason
    rows = rows.where(recent.c.status == "failed", is_ours, decisions.c.arm.in_(settings.arms))
    counts: dict[tuple[str, str], list[bool]] = defaultdict(list)
    unable: dict[tuple[str, str], int] = defaultdict(int)
    harmful: Counter[tuple[str, str]] = Counter()
    with database.read() as connection:
        for arm, text, stop_reason in connection.execute(rows):
            made_by = json_object(text)
            failure, is_handed_over = failure_of(made_by), successor_of(made_by) is not None
            if stop_reason in (ABANDONED, DIED):
                harmful[arm, stop_reason] += 1
            elif failure is not None and failure.is_unable:
                unable[arm, str(failure.inability)] += is_handed_over
            elif failure is not None and failure.kind != "refused" and stop_reason != "request_refused":
                counts[arm, failure.kind].append(is_handed_over)
    for (arm, inability), count in unable.items():
        if count:
            asked = f"{counted(count, 'question')} in the last hour"
            what = f"{asked} with more than its model can do ({inability}): others took over"
            is_context = inability == "context"
            setting = "context_tokens" if is_context else "supports, or leave the parameter out by its fields"
            yield Finding("warning", f"arms.{arm}", what, f"set its generator's {setting}")
    for (arm, stop_reason), count in harmful.items():
        remedy = "let its code pass on asyncio.CancelledError, and await with a timeout"
        what = f"{counted(count, 'answer')} in the last hour ran on after budget.seconds and ignored their cancellation"
        if stop_reason == DIED:
            what, remedy = (
                f"{counted(count, 'answer')} in the last hour ended the processes that ran them",
                "see the workers' logs",
            )
        yield Finding("problem", f"arms.{arm}", what, remedy)
    for (arm, kind), handed_over in counts.items():
        failed = f"{counted(len(handed_over), 'answer')} failed in the last hour ({kind})"
        what = f"{failed}; another arm took over {sum(handed_over)}"
        denied = kind == "denied"
        remedy = "correct its generator's key, quota, model or address" if denied else "see its server's log"
        yield Finding("problem" if denied else "warning", f"arms.{arm}", what, remedy)


def _gone_model_findings(database: "Database", settings: "Settings", _: float) -> Iterator[Finding]:
    from ragbandit.router.serving.health.gone_models import GoneModels

    if settings.health.failures == 0:  # without the circuit breaker, no arm is retired
        return
    models = GoneModels(database, arms=settings.worker_arms, generators=settings.named_generators)
    models.read()
    for arm, facts in models.retired.items():
        what = f"its model {facts.get('model')} is gone (HTTP {facts.get('status')}), so the arm is not offered"
        yield Finding("problem", f"arms.{arm}", what, "name another model in its generator (docs/drift.md)")


@contextlib.contextmanager
def _redis_client(settings: "Settings") -> "Iterator[Redis]":
    """Yields a tested client of the configured Redis or of `ragbandit up`'s Redis. Raises QueueError, ConfigError."""
    from redis.exceptions import RedisError

    from ragbandit.router.queue.jobs import connect_redis
    from ragbandit.router.queue.refusals import queue_error, try_commands

    client = connect_redis(settings.redis, timeout_s=3.0)
    try:
        try_commands(client)
        yield client
    except (RedisError, OSError) as error:
        raise queue_error(error) from error
    finally:
        client.close()


def ping(settings: "Settings") -> None:
    """Raises QueueError if Redis does not reply, or refuses a command that is needed."""
    with _redis_client(settings):
        pass


def findings_of_processes(settings: "Settings") -> list[Finding]:
    """Findings of Redis and of the processes listed in it; [] if this installation has never used Redis."""
    if settings.redis_url is None and not Path(settings.data_dir, "redis.log").exists():
        return []
    return run_check("Redis", lambda: _redis_findings(settings))


def _redis_findings(settings: "Settings") -> Iterator[Finding]:
    from redis.exceptions import RedisError

    from ragbandit.router.queue.presence import running_processes

    memory: Any = {}
    try:
        with _redis_client(settings) as client:
            with contextlib.suppress(RedisError):  # RagBandit's Redis user may lack the permission
                memory = client.info("memory")
            cards = running_processes(client)
    except QueueError:
        if settings.redis_url is not None:
            raise
        what = "`ragbandit up` does not run here, so no service answers and no process of it learns"
        remedy = "start it; a program that calls Router.open() decides and learns by itself, and needs none"
        yield Finding("warning", "processes", what, remedy)
        return
    if int(memory.get("maxmemory", 0)) and memory.get("maxmemory_policy", "noeviction") != "noeviction":
        what = f"maxmemory-policy is {memory['maxmemory_policy']}: when it is full it deletes wake-ups and rates"
        yield Finding("warning", "Redis", what, "set noeviction, or use a Redis only for RagBandit")
    yield from _missing_process_findings(cards, settings=settings)
    yield from _difference_findings(cards, settings=settings)


def _missing_process_findings(cards: "Sequence[ProcessCard]", *, settings: "Settings") -> Iterator[Finding]:
    judged = settings.judge.generator is not None and settings.judge.share > 0
    served = {queue for card in cards for queue in card.queues}
    if not any(card.role == "service" for card in cards):
        what = "no service runs; a program that calls Router.open() decides by itself, and is not listed"
        yield Finding("warning", "processes", what, "start `ragbandit up`; it is listed within seconds")
    for queue, is_needed in {"learn": True, "answer": bool(settings.worker_arms), "judge": judged}.items():
        if is_needed and queue not in served:
            remedy = f"start `ragbandit worker --queue {queue}`, or see its log"
            yield Finding("problem", "processes", f"no worker for the queue {queue} runs", remedy)


def _difference_findings(cards: "Sequence[ProcessCard]", *, settings: "Settings") -> Iterator[Finding]:
    for part in ("ragbandit", "python", "numpy", "torch"):
        hosts_by = _hosts_by(cards, lambda card: card.version if part == "ragbandit" else card.packages.get(part))  # noqa: B023
        if len(hosts_by) > 1:
            remedy = "install the same versions on every host; docs/machines.md says where it counts"
            yield Finding("warning", "versions", f"{part}: {_hosts_in_words(hosts_by)}", remedy)
    for host, ahead in {card.host: card.ahead_s for card in cards}.items():
        if abs(ahead) >= APART_S:
            what = f"the clock of {host} is {abs(ahead):.1f} s {'ahead' if ahead > 0 else 'behind'} of Redis"
            remedy = "let NTP or chrony set the clocks of all hosts (timedatectl)"
            yield Finding("warning" if abs(ahead) < WRONG_S else "problem", "clocks", what, remedy)
    hosts_by = _hosts_by(cards, lambda card: card.retriever if "answer" in card.queues else None)
    if len(hosts_by) > 1:
        remedy = "copy one index to every host, or build it again from the same corpus; then restart the workers"
        yield Finding(
            "problem",
            "indexes",
            f"workers find different passages for one question: {_hosts_in_words(hosts_by)}",
            remedy,
        )
    hosts = {card.host for card in cards}
    if len(hosts) > 1 and "://" not in settings.snapshot_root and settings.snapshots is None:
        what = f"{len(hosts)} hosts, but only one has {settings.snapshot_root}: an old policy decides on the others"
        remedy = "set `snapshots` to a shared folder or an fsspec URL that every host reaches"
        yield Finding("problem", "snapshots", what, remedy)


def _hosts_by(cards: "Sequence[ProcessCard]", value: "Callable[[ProcessCard], str | None]") -> dict[str, set[str]]:
    """Returns value -> hosts of the processes that have this value. Processes whose value is None are left out."""
    hosts: dict[str, set[str]] = defaultdict(set)
    for card in cards:
        card_value = value(card)
        if card_value:
            hosts[card_value].add(card.host)
    return dict(hosts)


def _hosts_in_words(hosts_by: Mapping[str, set[str]]) -> str:
    return "; ".join(f"{value} on {', '.join(sorted(hosts))}" for value, hosts in hosts_by.items())
