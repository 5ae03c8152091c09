"""Checks over the hosts: which processes are there, and whether they are of one kind (router/queue/presence.py)."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from sqlalchemy import select

from ragbandit.router.cli.doctor.database import judged_clock, opened
from ragbandit.router.cli.doctor.findings import Finding, Installation, fine, problem, warning
from ragbandit.router.cli.doctor.redis import connected
from ragbandit.router.queue.presence import ProcessCard, present
from ragbandit.router.storage.ledgers.registration import OTHER_ENCODER
from ragbandit.router.storage.sql.tables import policies


def there(installation: Installation) -> Sequence[Finding]:
    """Whether a service, an answer worker, a learner and a judge run, as far as they are needed."""
    settings, cards = installation.settings, _cards(installation)
    served = {queue for card in cards for queue in card.queues}
    needed = {"learn": True, "answer": bool(settings.worker_arms)}
    needed["judge"] = settings.judge.generator is not None and settings.judge.share > 0
    findings = []
    if not any(card.role == "service" for card in cards):
        means = "nobody decides over HTTP; a library that decides in its own process is not listed"
        remedy = "start `ragbandit serve` or `ragbandit up`; one that has just started is listed within seconds"
        findings.append(warning("processes", "no service is there", means=means, remedy=remedy))
    does = {"learn": "learns from feedback", "answer": "answers questions", "judge": "judges answers"}
    for queue, wanted in needed.items():
        if wanted and queue not in served:
            remedy = f"start `ragbandit worker --queue {queue}`, or see the log of the one that should run"
            text = f"no worker for the queue {queue} is there"
            findings.append(problem("processes", text, means=f"nobody {does[queue]}", remedy=remedy))
    return findings or [fine("processes", ", ".join(card.named() for card in cards[:10]))]


def versions(installation: Installation) -> Sequence[Finding]:
    """Whether all run one version of ragbandit, Python and the packages that compute."""
    cards = _cards(installation)
    findings = []
    for part in ("ragbandit", "python", "numpy", "torch"):
        by = _grouped(cards, lambda card: card.version if part == "ragbandit" else card.packages.get(part, ""))  # noqa: B023
        if len(by) > 1:
            means = (
                "fine during a rolling upgrade, within the schemas that both know"
                if part == "ragbandit"
                else "results may differ by rounding between hosts; docs/machines.md says where that counts"
            )
            remedy = "install the same versions on every host"
            findings.append(warning("versions", f"{part}: {_told(by)}", means=means, remedy=remedy))
    return findings or [fine("versions", f"one version on all: {cards[0].version}" if cards else "no process is there")]


def clocks(installation: Installation) -> Sequence[Finding]:
    """The clock of every host against that of Redis, when it last said that it is there."""
    ahead = {card.host: card.ahead_s for card in _cards(installation)}
    judged = [judged_clock("clocks of the hosts", by, whose=f"the clock of {host}") for host, by in ahead.items()]
    wrong = [finding for finding in judged if finding.level != "ok"]
    text = f"{len(ahead)} of {len(ahead)} agree with Redis" if ahead else "no process is there"
    return wrong or [fine("clocks of the hosts", text)]


def indexes(installation: Installation) -> Sequence[Finding]:
    """Whether all answer workers search one index."""
    by = _grouped(_cards(installation), lambda card: card.retriever if "answer" in card.queues else "")
    if len(by) <= 1:
        return [fine("indexes", f"all search {next(iter(by))}" if by else "no answer worker is there")]
    means = "one question gets other passages on another host, and the policy learns from a mixture"
    remedy = "copy one index to every host, or build it again from the same corpus; then restart the workers"
    return [problem("indexes", _told(by), means=means, remedy=remedy)]


def encoder(installation: Installation) -> Sequence[Finding]:
    """Whether the services encode as the ledger was learned."""
    settings = installation.settings
    with opened(settings) as database, database.read() as connection:
        label = policies.c.label == settings.policy.label
        of_ledger = connection.execute(select(policies.c.encoder_hash).where(label)).scalar_one_or_none()
    if not of_ledger:
        return [fine("encoder", "this ledger is learned without features, or is not there yet")]
    by = _grouped(_cards(installation), lambda card: card.encoder)
    strange = {hashed: cards for hashed, cards in by.items() if hashed != of_ledger}
    if not strange:
        return [fine("encoder", f"{of_ledger[:12]}, as the ledger")]
    short = {hashed[:12]: cards for hashed, cards in strange.items()}
    means = "features that another encoder made say nothing to this policy: its learner sets such decisions apart"
    remedy = f"give every host the same weights, encoder.model and encoder.precision; {OTHER_ENCODER}"
    return [problem("encoder", f"{_told(short)}; the ledger has {of_ledger[:12]}", means=means, remedy=remedy)]


def shared_snapshots(installation: Installation) -> Sequence[Finding]:
    """Whether snapshots lie where all hosts find them."""
    settings = installation.settings
    hosts = {card.host for card in _cards(installation)}
    if len(hosts) > 1 and "://" not in settings.snapshot_root and settings.snapshots is None:
        means = "a service on a host without the learner finds no snapshot: it goes on with an old policy"
        remedy = "set `snapshots` to a shared folder or an fsspec URL that every host reaches"
        text = f"{len(hosts)} hosts, and snapshots lie in {settings.snapshot_root}"
        return [problem("snapshots over hosts", text, means=means, remedy=remedy)]
    return [fine("snapshots over hosts", settings.snapshot_root)]


def _cards(installation: Installation) -> list[ProcessCard]:
    with connected(installation.settings) as client:
        return present(client)


def _grouped(cards: Sequence[ProcessCard], value: Callable[[ProcessCard], str]) -> dict[str, list[ProcessCard]]:
    """Value -> the processes that have it; without those that have none."""
    by: dict[str, list[ProcessCard]] = defaultdict(list)
    for card in cards:
        if value(card):
            by[value(card)].append(card)
    return dict(by)


def _told(by: dict[str, list[ProcessCard]]) -> str:
    return "; ".join(f"{value} on {', '.join(sorted({card.host for card in cards}))}" for value, cards in by.items())
