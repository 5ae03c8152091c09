"""The numbers of the sentences on screens, counted again by SQL from the tables of the store.

Each number of a screen belongs to a sentence of SENTENCES, whose numbers are counted here, to one of AGREED, which only
an estimator computes, so that all screens have to show the estimator's number, or to one of FREE, which counts nothing.
"""

import contextlib
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from ragbandit.router.comparison import Difference, words
from ragbandit.shared.texts.formats import decimal, money, number, percent

_FIRST: Final = """FROM decisions d LEFT JOIN outcomes o ON o.decision_id = d.id
    LEFT JOIN updates u ON u.decision_id = d.id AND u.source = 'explicit' WHERE d.turn_of IS NULL"""
_DOLLARS: Final = "coalesce(json_extract(o.cost, '$.dollars'), 0) + coalesce(json_extract(o.cost, '$.late.dollars'), 0)"
_UNPRICED: Final = "json_extract(o.cost, '$.assumed_dollars') > 0"
_NEWEST: Final = "d.id IN (SELECT id FROM decisions WHERE turn_of IS NULL ORDER BY made_at DESC, id DESC LIMIT 100)"
_ONE_ARM: Final = "json_array_length(d.arms) = 1"
_DRAWN: Final = f"(d.arm_by IS NULL OR d.arm_by IN ('rule', 'needs', 'breaker')) AND NOT {_ONE_ARM}"
#: what decided questions in place of a draw, in words -> the same as a condition
_UNDRAWN: Final = {
    "the caller": "d.arm_by = 'caller'",
    "a failover": "d.arm_by = 'failover'",
    "a limit of the session or task": "d.arm_by = 'limit'",
    "the kill switch": "d.arm_by = 'kill switch'",
    "a rule that left one arm": f"d.arm_by = 'rule' AND {_ONE_ARM}",
    "the circuit breaker, which left one arm": f"d.arm_by = 'breaker' AND {_ONE_ARM}",
    "the only arm on offer": f"(d.arm_by IS NULL OR d.arm_by = 'only arm') AND {_ONE_ARM}",
}
#: a kind of questions in words -> the same as a condition
_KINDS: Final = {
    'begins with "who"': "d.text LIKE 'Who%'",
    "asks how many, how much or how long": "d.text LIKE 'How many%'",
}
#: numbers in a pattern: a count, dollars, a share, a signed reward
_D: Final = r"\d+(?:,\d{3})*(?:\.\d+)?"
_PARTS: Final = {"N": r"\d+(?:,\d{3})*", "M": rf"[+-]?\${_D}", "P": rf"{_D} %", "S": r"[+-]?\d\.\d{3}", "D": _D}
Groups = Mapping[str, str | None]


@cache
def with_numbers(pattern: str) -> re.Pattern[str]:
    """The pattern in which the capitals N, M, P, S and D stand for numbers."""
    return re.compile(re.sub(r"(?<![\\\w<])(?<!\(\?)([NMPSD])(?![\w>])", lambda found: _PARTS[found[1]], pattern))


class Counted:
    """A store, read by SQL alone; `report` is the JSON of its report, for numbers that only an estimator computes."""

    def __init__(self, database: Path, *, report: Mapping[str, Any], decision: str = "") -> None:
        self._database, self.report, self.decision = database, report, decision

    def rows(self, query: str, *values: object) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self._database)) as connection:
            return list(connection.execute(query, values))

    def one(self, query: str, *values: object) -> Any:
        ((value,),) = self.rows(query, *values)
        return value

    def questions(self, condition: str = "1") -> int:
        return self.one(f"SELECT count(*) {_FIRST} AND ({condition})")

    def dollars(self, condition: str = "1") -> float:
        return self.one(f"SELECT coalesce(sum({_DOLLARS}), 0.0) {_FIRST} AND ({condition})")

    def share(self, condition: str, *, of: str = "1") -> float:
        return self.questions(f"({of}) AND ({condition})") / self.questions(of)

    @property
    def total(self) -> Mapping[str, Any]:
        return self.report["total"]

    def difference(self, name: str, *, arm: str | None = None) -> Difference:
        """A difference of the report's comparison with its arm, or with another arm."""
        one = self.total if arm is None else next(o for o in self.report["arms"] if o["second_arm"] == arm)
        return Difference(**one[name])

    @property
    def _is_open(self) -> str:
        return f"EXISTS (SELECT 1 FROM units n WHERE n.first = d.id AND n.until > {self.report['until']})"

    def undrawn(self, by: str) -> str:
        if by.startswith("the budget of the tenant "):
            return f"d.tenant = '{by.split()[5].strip(',')}' AND coalesce(d.budget_factor, 0) >= 2 AND {_DRAWN}"
        return _UNDRAWN[by]

    def left_out(self, reason: str) -> str:
        """The condition of a reason for which no comparison includes a question."""
        if reason.startswith("decided by "):
            return self.undrawn(reason.removeprefix("decided by "))
        if reason == "a task that has not ended":
            return f"{_DRAWN} AND {self._is_open}"
        if reason == "no outcome yet":
            return f"{_DRAWN} AND NOT {self._is_open} AND o.cost IS NULL AND u.seq IS NULL"
        arm = reason.removesuffix(" was not offered")
        return f"""{_DRAWN} AND d.arms NOT LIKE '%"{arm}"%'"""

    def compared(self, arm: str | None = None) -> str:
        """The condition of the questions that are compared with the report's arm, or with another arm."""
        paced = [by["by"] for by in self.report["undrawn"] if "budget" in by["by"]]
        conditions = [f"{_DRAWN} AND NOT {self._is_open} AND (o.cost IS NOT NULL OR u.seq IS NOT NULL)"]
        conditions += [f"NOT ({self.undrawn(by)})" for by in paced]
        conditions += [f"""d.arms LIKE '%"{arm or self.total["second_arm"]}"%'"""]
        return " AND ".join(conditions)

    def priced(self, arm: str | None = None) -> str:
        """The condition of the compared questions that could draw the arm: only their costs are compared."""
        drawable = f"{self.compared(arm)} AND {_chance_of(arm or self.total['second_arm'])} > 1e-9"
        return drawable if self.questions(drawable) else self.compared(arm)


def _chance_of(arm: str) -> str:
    place = f"(SELECT e.key FROM json_each(d.arms) e WHERE e.value = '{arm}')"
    return f"json_extract(d.pmf, '$[' || {place} || ']')"


class Sentence(NamedTuple):
    #: _PARTS in it stand for their numbers
    text: str
    #: function of the store and the match; returns the name of each group with a number -> its text by the store
    counted: Callable[[Counted, re.Match[str]], Groups]

    @property
    def pattern(self) -> re.Pattern[str]:
        return with_numbers(self.text)


def _n(count: float | None) -> str:
    return "0" if count is None else f"{count:,.0f}"


def _share(share: float, digits: int = 2) -> str:
    return percent(round(share, digits))


def _undrawn(store: Counted, found: re.Match[str]) -> Groups:
    condition = store.undrawn(found["by"])
    # a rating counts as given if the decision was closed; at a raised price only what was learned counts
    given = "(SELECT avg(f.value) FROM feedback f WHERE f.decision_id = d.id AND f.kind = 'rating')"
    quality = "u.quality" if "budget" in found["by"] else f"coalesce(u.quality, {given})"
    mean = store.one(f"SELECT avg({quality}) {_FIRST} AND {condition}")
    sums = {"n": _n(store.questions(condition)), "spent": money(store.dollars(condition), "dollars")}
    return sums | {"all": _n(store.questions()), "quality": None if mean is None else number(mean)}


def _left_out(store: Counted, found: re.Match[str]) -> Groups:
    parts = re.findall(r"([\d,]+) \(([^)]*)\)", found["parts"])
    counted = ", ".join(f"{_n(store.questions(store.left_out(reason)))} ({reason})" for _, reason in parts)
    assert len(parts) == len(store.report["left_out"])
    return {"parts": counted}


def _state(store: Counted, found: re.Match[str]) -> Groups:
    names = () if found["by"] is None else found["by"].split(", or ")
    condition = " OR ".join(f"({store.undrawn(by)})" for by in names) or "d.budget_factor >= 2"
    return {"share": _share(store.share(condition, of=_NEWEST))}


def _safe_start(store: Counted, found: re.Match[str]) -> Groups:
    return {"share": _share(store.share(f"d.arm = '{found['arm']}'", of=_NEWEST))}


def _rated(store: Counted, found: re.Match[str]) -> Groups:
    compared = store.compared()
    arms = re.findall(r"(\w+) [\d.]+ %", found["parts"])
    shares = (f"{arm} {_share(store.share('u.seq > 0', of=f'''{compared} AND d.arm = '{arm}' '''))}" for arm in arms)
    return {"parts": "; ".join(shares)}


def _late(store: Counted, found: re.Match[str]) -> Groups:
    late = "coalesce(json_extract(o.cost, '$.late.dollars'), 0)"
    rows = store.rows(f"SELECT d.arm, sum({late}), sum({_DOLLARS}) {_FIRST} GROUP BY d.arm ORDER BY d.arm")
    parts = [f"{arm} {money(after, 'dollars')} of {money(spent, 'dollars')}" for arm, after, spent in rows if after]
    return {"all": money(sum(row[1] for row in rows), "dollars"), "parts": "; ".join(parts)}


def _retracted(store: Counted, found: re.Match[str]) -> Groups:
    # a rating that was taken back stands before the row that takes it back
    back = "EXISTS (SELECT 1 FROM feedback b WHERE b.decision_id = d.id AND b.value = 'null')"
    query = f"""SELECT d.arm, sum(f.value >= 0.5), sum(f.value < 0.5) FROM decisions d JOIN feedback f
        ON f.decision_id = d.id AND f.value != 'null' WHERE {back} GROUP BY d.arm ORDER BY d.arm"""
    return {"parts": "; ".join(f"{arm} {good} and {bad}" for arm, good, bad in store.rows(query))}


def _limited(store: Counted, found: re.Match[str]) -> Groups:
    """Tasks with at least two turns, which is the limit of the store."""
    turns = "(SELECT count(*) FROM decisions t WHERE t.turn_of = d.id) + 1"
    rows = store.rows(f"SELECT d.arm, sum({turns} >= 2), count(*) {_FIRST} GROUP BY d.arm ORDER BY d.arm")
    return {"parts": "; ".join(f"{arm} {reached} of {count}" for arm, reached, count in rows)}


def _sessions(store: Counted, found: re.Match[str]) -> Groups:
    """Questions of sessions with one question at least, which is the limit of the store."""
    rows = store.rows(f"SELECT d.arm, count(*) {_FIRST} GROUP BY d.arm ORDER BY d.arm")
    return {"parts": "; ".join(f"{arm} {count} of {count}" for arm, count in rows)}


def _seconds(store: Counted, found: re.Match[str]) -> Groups:
    compared = store.compared()
    seconds = "coalesce(json_extract(o.cost, '$.seconds_total'), 0.0)"
    query = f"SELECT d.arm, count(*), avg({seconds}) {_FIRST} AND {compared} GROUP BY d.arm ORDER BY -count(*)"
    whole = store.questions(compared)
    rows = (f"{arm} {_share(count / whole, 3)}, {number(mean)} s" for arm, count, mean in store.rows(query))
    return {"parts": "; ".join(rows)}


def _spent_line(store: Counted, found: re.Match[str]) -> Groups:
    unpriced = store.questions(_UNPRICED)
    estimated = None
    if found["instead"]:
        estimated = money(store.difference("cost").second * store.questions(store.priced()), "dollars")
    spent = money(store.dollars(), "dollars")
    return {"spent": spent, "unpriced": _n(unpriced) if unpriced else None, "instead": estimated}


def _sums(store: Counted, found: re.Match[str]) -> Groups:
    return {"n": _n(store.questions())} | _spent_line(store, found)


def _facts(store: Counted, found: re.Match[str]) -> Groups:
    compared = store.compared()
    counts = {"n": store.questions(), "compared": store.questions(compared)}
    counts["rated"] = store.questions(f"{compared} AND u.seq > 0")
    return {name: _n(count) for name, count in counts.items()} | _spent_line(store, found)


def _compared_sums(store: Counted, found: re.Match[str]) -> Groups:
    compared = store.priced()
    count, spent = store.questions(compared), store.dollars(compared)
    instead = store.difference("cost").second * count
    return {"n": _n(count), "spent": money(spent, "dollars"), "instead": money(instead, "dollars")}


def _row(store: Counted, found: re.Match[str]) -> Groups:
    arm = found["arm"]
    compared, priced = store.compared(arm), store.priced(arm)
    cost = money(store.dollars(priced) / store.questions(priced), "dollars")
    return {
        "n": _n(store.questions(compared)),
        "rated": _n(store.questions(f"{compared} AND u.seq > 0")),
        "reward": words.difference(store.difference("reward", arm=arm)),
        "quality": words.difference(store.difference("quality", arm=arm)),
        "cost": "\N{EN DASH}" if store.questions(f"{compared} AND {_UNPRICED}") else cost,
    }


def _group_row(condition: str) -> Callable[[Counted, re.Match[str]], Groups]:
    """condition: of the group; {name} stands for its name"""

    def counted(store: Counted, found: re.Match[str]) -> Groups:
        group = f"{store.compared()} AND {condition.format(name=found['name'])}"
        cost = money(store.dollars(group) / store.questions(group), "dollars")
        return {"n": _n(store.questions(group)), "rated": _n(store.questions(f"{group} AND u.seq > 0")), "cost": cost}

    return counted


def _counts(name: str, query: str) -> Sentence:
    return Sentence(rf"\b{name} (?P<n>N)\b", lambda store, _: {"n": _n(store.one(query))})


def _learned(store: Counted, found: re.Match[str]) -> Groups:
    arms = re.findall(r"(\w+) [\d,]+", found["parts"])
    query = "SELECT count(*) FROM updates WHERE arm = ?"
    return {"parts": ", ".join(f"{arm} {_n(store.one(query, arm))}" for arm in arms)}


def _judged_arm(store: Counted, found: re.Match[str]) -> Groups:
    return {"n": _n(store.one("SELECT count(*) FROM updates WHERE arm = ?", found["arm"]))}


def _budget(store: Counted, found: re.Match[str]) -> Groups:
    tenant = found["tenant"]
    spent = store.one(f"SELECT sum({_DOLLARS}) {_FIRST} AND d.tenant = '{tenant}'")
    return {"share": percent(spent / float(found["most"]))}


def _raised(store: Counted, found: re.Match[str]) -> Groups:
    of = f"d.tenant = '{found['tenant']}'"
    return {"share": _share(store.share(f"d.arm = '{found['arm']}'", of=of))}


def _kinds_of(store: Counted, found: re.Match[str]) -> Groups:
    several = store.one(f"SELECT count(*) FROM decisions d WHERE {_DRAWN} AND d.fault IS NULL")
    return {"n": _n(min(several, 1_000))}


def _kind(store: Counted, found: re.Match[str]) -> Groups:
    """The share of a kind in the newest questions, and the mean probabilities of arms that have one in a hundred."""
    kind, whole = f"{_DRAWN} AND {_KINDS[found['name']]}", store.questions(_DRAWN)
    arms = [arm for (arm,) in store.rows("SELECT DISTINCT e.value FROM decisions d, json_each(d.arms) e ORDER BY 1")]
    means = {arm: store.one(f"SELECT avg({_chance_of(arm)}) {_FIRST} AND {kind}") for arm in arms}
    shown = [f"{arm} {_share(mean)}" for arm, mean in means.items() if mean >= 0.01]
    separator = ", " if ", " in found["parts"] else " "
    return {"share": _share(store.questions(kind) / whole, 3), "parts": separator.join(shown)}


def _own_kind(store: Counted, found: re.Match[str]) -> Groups:
    is_of_kind = store.questions(f"d.id = '{store.decision}' AND {_KINDS[found['name']]}")
    return {"name": found["name"] if is_of_kind else "another kind"}


def _failed(store: Counted, found: re.Match[str]) -> Groups:
    failed = f"d.arm = '{found['arm']}' AND o.status = 'failed'"
    taken = store.questions(f"{failed} AND json_extract(o.made_by, '$.successor') IS NOT NULL")
    return {"n": _n(store.questions(failed)), "taken": _n(taken)}


def _in_a_row(store: Counted, found: re.Match[str]) -> Groups:
    """Failed answers of an arm since its last other answer."""
    ended = f"FROM outcomes o JOIN decisions d ON d.id = o.decision_id WHERE d.arm = '{found['arm']}'"
    last = f"SELECT coalesce(max(o.made_at), 0) {ended} AND o.status != 'failed'"
    return {"n": _n(store.one(f"SELECT count(*) {ended} AND o.made_at > ({last})"))}


def _shares(store: Counted, found: re.Match[str]) -> Groups:
    rows = store.rows(f"SELECT d.arm, count(*) {_FIRST} GROUP BY d.arm ORDER BY -count(*), d.arm")
    whole = store.questions()
    return {"parts": ", ".join(f"{arm} {_share(count / whole)}" for arm, count in rows)}


def _line_costs(store: Counted, found: re.Match[str]) -> Groups:
    count, cost = store.questions(store.priced()), store.difference("cost")

    def shown(mean: float | None) -> str:
        amount = (mean or 0.0) * count
        return ("+" if amount > 0.0 else "") + money(amount, "dollars")

    return {"cost": shown(cost.estimate), "low": shown(cost.low), "high": shown(cost.high)}


def _interval(store: Counted, found: re.Match[str]) -> Groups:
    return {"interval": words.interval_words(store.difference("reward"))}


def _estimate(store: Counted, found: re.Match[str]) -> Groups:
    return {"estimate": words.estimate_with_interval(store.difference("reward"))}


def _quality(store: Counted, found: re.Match[str]) -> Groups:
    quality = store.difference("quality")
    return {"first": decimal(quality.first), "second": decimal(quality.second)}


def _cost_change(store: Counted, found: re.Match[str]) -> Groups:
    """The change that `cost_words` says, of the mean that was served and the arm's estimated mean."""
    cost, compared = store.difference("cost"), store.priced()
    served = store.dollars(compared) / store.questions(compared)
    assert served == _near(cost.first)
    share = abs(served / cost.second - 1.0)
    # 43.5 % is shown as 43 % or 44 %, by the rounding of the sums
    shares = [percent(round(share + rest, 2)) for rest in (0.0, -1e-9, 1e-9)]
    return {
        "share": next((one for one in shares if one == found["share"]), shares[0]) if found["share"] else None,
        "times": None if found["share"] else f"{1 + share:,.0f}",
    }


def _saved(store: Counted, found: re.Match[str]) -> Groups:
    """What was saved is what the arm is estimated to cost, minus the dollars of the compared questions."""
    compared = store.priced()
    count, cost = store.questions(compared), store.difference("cost")
    instead, spent = cost.second * count, store.dollars(compared)
    share = _share(abs(cost.estimate / cost.second))
    assert spent - instead == _near(cost.estimate * count)
    return {"saved": money(abs(cost.estimate * count), "dollars"), "instead": money(instead, "dollars"), "share": share}


def _near(value: float) -> object:
    import pytest

    return pytest.approx(value, rel=1e-6, abs=1e-9)


def _forest(store: Counted, found: re.Match[str]) -> Groups:
    """An arm's interval is the interval of the reward or of the quality in its comparison."""
    known = {words.difference(store.difference(name, arm=found["arm"])) for name in ("reward", "quality")}
    return {"interval": found["interval"] if found["interval"] in known else str(known)}


def _judgements(store: Counted, found: re.Match[str]) -> Groups:
    first = "coalesce((SELECT turn_of FROM decisions WHERE id = ?), ?)"
    query = (
        f"SELECT source, value FROM feedback WHERE decision_id = {first} AND value != 'null' ORDER BY received_at, id"
    )
    rows = store.rows(query, store.decision, store.decision)
    return {"parts": "; ".join(f"{source} {value}" for source, value in rows)}


def _answers(store: Counted, found: re.Match[str]) -> Groups:
    """Answers of decisions and of their later turns."""
    ended = "FROM outcomes o JOIN decisions d ON d.id = o.decision_id"
    count = store.one(f"SELECT count(*) {ended}")
    failed = store.one(f"SELECT count(*) {ended} WHERE o.status = 'failed'")
    spent = store.dollars()
    numbers = {"n": _n(count), "failed": _n(failed), "share": percent(failed / count), "spent": f"${number(spent)}"}
    numbers |= {"each": f"${number(spent / count)}", "unpriced": _n(store.questions(_UNPRICED))}
    return {name: value for name, value in numbers.items() if name in found.groupdict()}


def _worth(store: Counted, found: re.Match[str]) -> Groups:
    dollars, reward = store.report["dollars_per_reward"], store.difference("reward")
    shown = {"worth": (reward.low, reward.high), "estimate": (reward.estimate,)}
    amounts = {name: [1_000.0 * dollars * value for value in shown[name]] for name in found.groupdict()}
    return {
        name: " to ".join(("+" if one > 0.0 else "") + money(one, "dollars") for one in values)
        for name, values in amounts.items()
    }


def _judged_share(store: Counted, found: re.Match[str]) -> Groups:
    return {"share": _share(store.share("u.seq > 0", of=store.compared()))}


def _to_rate(store: Counted, found: re.Match[str]) -> Groups:
    unrated = store.questions(f"{store.compared()} AND d.arm = '{found['arm']}' AND u.seq IS NULL")
    assert store.report["to_rate"] <= unrated
    return {"n": None if found["n"] == "one" else _n(store.report["to_rate"])}


def _new_arm(store: Counted, found: re.Match[str]) -> Groups:
    first = f"""(SELECT min(made_at) FROM decisions WHERE arms LIKE '%"{found["arm"]}"%')"""
    return {"n": _n(store.questions(f"{_DRAWN} AND d.made_at < {first}"))}


def _changed_price(store: Counted, found: re.Match[str]) -> Groups:
    """The prices before and after; the traffic of the store changes it once, from one price to another."""
    rows = store.rows(f"SELECT {_DOLLARS} {_FIRST} AND d.arm = '{found['arm']}' ORDER BY d.made_at")
    return {"before": money(rows[0][0], "dollars"), "after": money(rows[-1][0], "dollars")}


#: the dollars of a row of a table; a dash if they are not known
_ROW_END: Final = " │ (?P<cost>M|\N{EN DASH}) instead of (?:M|\N{EN DASH}) │"
_MEAN: Final = "SELECT avg(u.{}) FROM updates u"
SENTENCES: Final = (
    Sentence(
        r"(?P<n>N) of (?P<all>N) questions? (?:were|was) decided by (?P<by>[\w ,]+?) "
        r"\((?:quality (?P<quality>D), )?(?P<spent>M)\)",
        _undrawn,
    ),
    Sentence(
        r"(?P<n>N) questions? for (?P<spent>M)(?: and (?P<unpriced>N) answers? without a price)?"
        r"(?: instead of (?P<instead>M) with)?",
        _sums,
    ),
    Sentence(
        r"(?i)questions:? (?P<n>N);? compared with always \w+:? (?P<compared>N);? "
        r"rated of the compared:? (?P<rated>N);?"
        r" spent:? (?P<spent>M)(?: and (?P<unpriced>N) answers? without a price)?(?: instead of (?P<instead>M) with)?",
        _facts,
    ),
    Sentence(
        r"(?P<n>N) compared questions?(?: that could draw always \\w+)?: (?P<spent>M) instead of (?P<instead>M) with",
        _compared_sums,
    ),
    Sentence(
        r"(?:outage|limit|kill switch): (?P<share>P) of the questions are decided by "
        r"(?P<by>[\w ,]+?)(?=[.;] |$| Spent)",
        _state,
    ),
    Sentence(
        r"budget: (?P<share>P) of the questions are decided at a price(?P<by>)?".replace("(?P<by>)?", "(?P<by>!)?"),
        _state,
    ),
    Sentence(r"safe start: (?P<share>P) of the questions still go to (?P<arm>\w+)", _safe_start),
    Sentence(r"questions that are in no comparison: (?P<parts>(?:N \([^)]*\)(?:, )?)+)", _left_out),
    Sentence(r"rated: (?P<parts>\w+ P(?:; \w+ P)*)\. Labels", _rated),
    Sentence(
        r"of what was spent, (?P<all>M) came after the decision was closed, so that no reward has it: "
        r"(?P<parts>\w+ M of M(?:; \w+ M of M)*)",
        _late,
    ),
    Sentence(r"retracted, good \(0\.5 or more\) and bad: (?P<parts>\w+ N and N(?:; \w+ N and N)*)", _retracted),
    Sentence(r"tasks that have reached a limit, by arm: (?P<parts>\w+ N of N(?:; \w+ N of N)*)", _limited),
    Sentence(
        r"questions of sessions that have reached a limit, by arm: (?P<parts>\w+ N of N(?:; \w+ N of N)*)", _sessions
    ),
    Sentence(r"mean seconds of an answer: (?P<parts>\w+ P, D s(?:; \w+ P, D s)*)", _seconds),
    Sentence(
        r"(?P<n>N) of (?P<all>N) compared outcomes report no dollars, and count as 0",
        lambda store, _: {
            "n": _n(store.questions(f"{store.compared()} AND {_DOLLARS} = 0 AND o.cost IS NOT NULL")),
            "all": _n(store.questions(f"{store.compared()} AND o.cost IS NOT NULL")),
        },
    ),
    Sentence(
        r"(?P<n>N) answers? of (?P<arm>\w+) have no price",
        lambda store, found: {"n": _n(store.questions(f"d.arm = '{found['arm']}' AND {_UNPRICED}"))},
    ),
    Sentence(
        r"Spent (?P<spent>M)(?: and (?P<unpriced>N) answers? without a price)?(?P<instead>!)?(?=[;,])", _spent_line
    ),
    Sentence(
        r"limited the arms of (?P<n>N) of (?P<all>N) questions",
        lambda store, _: {"n": _n(store.questions("d.facts LIKE '%\"rules\"%'")), "all": _n(store.questions())},
    ),
    Sentence(
        r"│ always (?P<arm>\w+) │ (?P<n>N) │ (?P<rated>N) │ "
        r"(?P<reward>[^│]*?) │ (?P<quality>[^│]*?)" + _ROW_END,
        _row,
    ),
    Sentence(
        r"│ weight (?P<name>N) │ (?P<n>N) │ (?P<rated>N) │ [^│]*? │ [^│]*?" + _ROW_END,
        _group_row("d.cost_weight = {name}"),
    ),
    Sentence(
        r"│ as (?P<name>configured) │ (?P<n>N) │ (?P<rated>N) │ [^│]*? │ [^│]*?" + _ROW_END,
        _group_row("d.cost_weight IS NULL"),
    ),
    Sentence(
        r"│ (?P<name>acme|default) │ (?P<n>N) │ (?P<rated>N) │ [^│]*? │ [^│]*?" + _ROW_END,
        _group_row("d.tenant = '{name}'"),
    ),
    _counts("decided", "SELECT count(*) FROM decisions WHERE turn_of IS NULL"),
    _counts("learned", "SELECT count(*) FROM updates"),
    _counts("ledger", "SELECT count(*) FROM updates"),
    _counts("waiting", "SELECT count(*) FROM waiting"),
    _counts("closed", "SELECT count(*) FROM closures WHERE state = 'closed'"),
    _counts("(?<!late )feedback", "SELECT count(*) FROM feedback"),
    _counts("late feedback", "SELECT count(*) FROM feedback WHERE late"),
    _counts("Decisions", "SELECT count(*) FROM decisions WHERE turn_of IS NULL"),
    _counts("Decisions since the beginning", "SELECT count(*) FROM decisions WHERE turn_of IS NULL"),
    _counts("Learned", "SELECT count(*) FROM updates"),
    _counts("which has learned", "SELECT max(last_seq) FROM snapshots"),
    _counts("Unanswered", "SELECT count(*) FROM jobs WHERE kind = 'answer'"),
    _counts("Quarantined", "SELECT count(*) FROM closures WHERE state = 'quarantined'"),
    _counts("judge", "SELECT count(*) FROM jobs WHERE kind = 'judge'"),
    Sentence(
        r"(?P<n>N) updates behind",
        lambda store, _: {
            "n": _n(
                store.one("SELECT coalesce(max(seq), 0) FROM updates")
                - store.one("SELECT coalesce(max(last_seq), 0) FROM snapshots")
            )
        },
    ),
    Sentence(
        r"(?P<n>N) more by the default reward",
        lambda store, _: {"n": _n(store.one("SELECT count(*) FROM updates WHERE source = 'default'"))},
    ),
    Sentence(r"Dollars per answer (?P<each>M) (?P<spent>M) for (?P<n>N) answers?, later turns", _answers),
    Sentence(r"Dollars (?P<spent>M) for (?P<n>N) answers?, of which (?P<unpriced>N) ha(?:ve|s) no price", _answers),
    Sentence(r"Failed answers (?P<share>P) (?P<failed>N) of (?P<n>N)", _answers),
    Sentence(
        r"(?P<n>N) waits? for feedback or an outcome",
        lambda store, _: {"n": _n(store.one("SELECT count(*) FROM waiting"))},
    ),
    Sentence(r"(?P<n>N) explored; also", lambda store, _: {"n": _n(store.questions("d.explored"))}),
    Sentence(
        r"Reward per question (?P<n>-?D) quality \S weight \S cost; of (?P<all>N) rated",
        lambda store, _: {
            "n": number(store.one(_MEAN.format("value"))),
            "all": _n(store.one("SELECT count(*) FROM updates")),
        },
    ),
    Sentence(
        r"Quality (?P<n>D) of (?P<all>N) rated questions",
        lambda store, _: {
            "n": number(store.one(_MEAN.format("quality"))),
            "all": _n(store.one("SELECT count(*) FROM updates")),
        },
    ),
    Sentence(r"it has learned (?P<parts>\w+ N(?:, \w+ N)*)", _learned),
    Sentence(r"(?P<arm>\w+) has (?P<n>N) rated answers?", _judged_arm),
    Sentence(r"the tenant (?P<tenant>\w+) has spent (?P<share>P) of its (?P<most>D) dollars", _budget),
    Sentence(
        r"the budget of the tenant (?P<tenant>\w+) raises the price N-fold now; (?P<arm>\w+) answers (?P<share>P)",
        _raised,
    ),
    Sentence(r"the newest (?P<n>N) questions? with several arms", _kinds_of),
    Sentence(
        r"arms\.(?P<arm>\w+): (?P<n>N) answers? failed in the last hour \(\w+\); another arm took over (?P<taken>N)",
        _failed,
    ),
    Sentence(r"(?P<arm>\w+): (?:suspended|healthy|on probation[^,]*), (?P<n>N) failures?", _in_a_row),
    Sentence(r"^(?:[\w ]+; )?(?P<parts>\w+ P(?:, \w+ P)*); (?=dollars|no questions|[+-])", _shares),
    Sentence(r", n (?P<n>N);", lambda store, _: {"n": _n(store.questions(store.compared()))}),
    Sentence(r"(?P<n>\w+|N) more answers? of (?P<arm>\w+): then", _to_rate),
    Sentence(
        rf"(?P<name>{'|'.join(_KINDS)}) │? ?(?P<share>P) │? ?(?P<parts>\w+ P(?:,? \w+ P)*) (?:│ )?"
        r"(?:S|\N{EN DASH}|too few)"
        r"(?: (?:│ +)?(?:S \(S to S\)|S to S))?",
        _kind,
    ),
    Sentence(r"(?P<arm>\w+) is new: it was offered first after (?P<n>N) questions", _new_arm),
    Sentence(r"an answer of (?P<arm>\w+) costs (?P<after>M) instead of (?P<before>M)", _changed_price),
    Sentence(r"assumed: nobody chose what to rate by how good it was \((?P<share>P) rated\)", _judged_share),
)


def _probabilities(store: Counted, found: re.Match[str]) -> Groups:
    ((arms, pmf),) = store.rows("SELECT arms, pmf FROM decisions WHERE id = ?", store.decision)
    pairs = sorted(zip(json.loads(pmf), json.loads(arms), strict=True), reverse=True)
    return {"parts": ", ".join(f"{arm} {percent(p)}" for p, arm in pairs)}


def _cost(store: Counted, found: re.Match[str]) -> Groups:
    """The amounts of an outcome; a turn's are its own, and those of a decision are the sum of its turns."""
    ((text,),) = store.rows("SELECT cost FROM outcomes WHERE decision_id = ?", store.decision)
    cost = json.loads(text)
    turns = store.one("SELECT count(*) FROM decisions WHERE turn_of = ?", store.decision)
    expected = {"dollars": number(cost.get("dollars", 0.0))}  # without what came after the decision was closed
    if found["turns"]:
        expected["turns"] = _n(turns)
    return expected


def _reward(store: Counted, found: re.Match[str]) -> Groups:
    first = "coalesce((SELECT turn_of FROM decisions WHERE id = ?), ?)"
    query = f"SELECT value, quality, weight, cost FROM updates WHERE decision_id = {first}"
    ((value, quality, weight, cost),) = store.rows(query, store.decision, store.decision)
    return {"value": number(value), "quality": number(quality), "weight": number(weight), "cost": number(cost)}


def _update(store: Counted, found: re.Match[str]) -> Groups:
    first = "coalesce((SELECT turn_of FROM decisions WHERE id = ?), ?)"
    return {"n": _n(store.one(f"SELECT seq FROM updates WHERE decision_id = {first}", *2 * [store.decision]))}


def _weight(store: Counted, found: re.Match[str]) -> Groups:
    ((weight, factor),) = store.rows("SELECT cost_weight, budget_factor FROM decisions WHERE id = ?", store.decision)
    return {"n": f"{weight:g}", "factor": f"{factor:g}"}


def _turn(store: Counted, found: re.Match[str]) -> Groups:
    query = """SELECT count(*) FROM decisions t, decisions d WHERE d.id = ? AND t.made_at <= d.made_at
        AND (t.turn_of = d.turn_of OR t.id = d.turn_of)"""
    return {"n": _n(store.one(query, store.decision))}


def _chances(store: Counted, found: re.Match[str]) -> Groups:
    """Probabilities and scores of the arms that a reason names."""
    query = f"SELECT %s FROM decisions d WHERE d.id = '{store.decision}'"
    texts = {}
    for name, value in found.groupdict().items():
        if name.startswith(("chance", "score")) and value is not None:
            arm = found["other" if name.endswith("_of_other") else "arm"]
            column = _chance_of(arm) if name.startswith("chance") else _chance_of(arm).replace("d.pmf", "d.scores")
            texts[name] = f"{store.one(query % column):.4g}"
    return texts


_SAFE_START_SHARE: Final = "SELECT json_extract(facts, '$.incumbent.share') FROM decisions WHERE id = ?"
OF_DECISION: Final = (
    Sentence(rf"kind of question (?P<name>{'|'.join(_KINDS)})", _own_kind),
    Sentence(r"judgements (?P<parts>\w+ D(?:; \w+ D)*)", _judgements),
    Sentence(
        r"steps (?P<n>D)",
        lambda store, _: {"n": number(store.one("SELECT steps FROM outcomes WHERE decision_id = ?", store.decision))},
    ),
    Sentence(r"probabilities (?P<parts>\w+ P(?:, \w+ P)*)", _probabilities),
    Sentence(r"(?P<dollars>D) dollars?(?:, (?P<turns>N) later turns?)?", _cost),
    Sentence(
        r"(?P<n>D) assumed dollars",
        lambda store, _: {
            "n": number(
                store.one(
                    "SELECT json_extract(cost, '$.assumed_dollars') FROM outcomes WHERE decision_id = ?", store.decision
                )
            )
        },
    ),
    Sentence(r"reward (?P<value>-?D), of quality (?P<quality>D) and (?P<weight>D) x cost (?P<cost>D)", _reward),
    Sentence(r"as update (?P<n>N) of its ledger", _update),
    Sentence(r"(?i)turn (?P<n>N) of a task", _turn),
    Sentence(
        r"(?P<arm>\w+) was (?:the likeliest arm|as likely as any arm), with probability (?P<chance>D)"
        r"(?:, and the policy expects (?:the most of it|as much of it as of any) \((?P<score>-?D)\)"
        r"|, though the policy expects more of (?P<other>\w+) "
        r"\((?P<score_of_other>-?D) against (?P<score_here>-?D)\))?",
        _chances,
    ),
    Sentence(
        r"(?P<arm>\w+) was drawn by chance, to explore: its probability was (?P<chance>D), that of the likeliest arm, "
        r"(?P<other>\w+), (?P<chance_of_other>D)",
        _chances,
    ),
    Sentence(r"(?P<arm>\w+) was the only arm on offer, so it had probability (?P<chance>1)", _chances),
    Sentence(
        r"served at cost weight (?P<n>D)"
        r"(?:, as its key or tenant has it, raised (?P<factor>D)-fold by a dollar budget)?",
        _weight,
    ),
    Sentence(
        r"the policy had a share of (?P<share>D) of the draw",
        lambda store, _: {"share": f"{store.one(_SAFE_START_SHARE, store.decision):.4g}"},
    ),
    Sentence(r"(?P<arm>\w+) has (?P<n>N) rated answers?", _judged_arm),
    Sentence(r"it has learned (?P<parts>\w+ N(?:, \w+ N)*)", _learned),
    Sentence(
        r"(?:outage|limit|kill switch): (?P<share>P) of the questions are decided by (?P<by>[\w ,]+?)(?=[.;])", _state
    ),
    Sentence(r"budget: (?P<share>P) of the questions are decided at a price(?P<by>!)?", _state),
    Sentence(r"safe start: (?P<share>P) of the questions still go to (?P<arm>\w+)", _safe_start),
)
#: numbers of an estimator: every screen has those of the report
AGREED: Final = (
    Sentence(
        r"(?<!live so far: )reward (?:better |worse |as good |not known yet )?(?P<interval>S to S) a question",
        _interval,
    ),
    Sentence(r"(?P<estimate>S \(S to S\)) reward a question", _estimate),
    Sentence(r"quality (?:better|worse|as good) \((?P<first>S) against (?P<second>S)\)", _quality),
    Sentence(r"(?:(?P<share>P) (?:less|more) cost|(?P<times>N) times the cost)", _cost_change),
    Sentence(r"(?:Saved|Spent) (?P<saved>M) (?:of|more than) (?P<instead>M) \((?P<share>P)\)", _saved),
    Sentence(r"(?P<worth>M to M) (?:per|interval of the worth of) 1,000 questions", _worth),
    Sentence(r"(?P<estimate>M) worth of 1,000 questions", _worth),
    Sentence(r"against always (?P<arm>\w+) (?:[├╌│━●┤ ]+ )?(?P<interval>S \(S to S\)|S to S)", _forest),
    Sentence(r"; (?P<cost>M) \((?P<low>M) to (?P<high>M)\) against", _line_costs),
)
#: numbers that count nothing in a store, or that another test counts
FREE: Final = (
    r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\b[0-9a-f]{12,}\b|\bmain-[\w-]+",  # ids and snapshots
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d|\d\d:\d\d:\d\d UTC",
    r"`[^`]*`|ragbandit report [^;]*? (?=reads|says)",  # commands, which the tests of printed commands run
    r"a right answer (?:is worth|at) D cents|gives \w+ a share of every draw, D",  # settings
    r"Last D (?:days|hours)|last \d+ (?:hours|days|months)|Charts appear D h|\bThe latest D h\b",
    r"95 % (?:intervals|confidence)|95th percentile|0\.5 or more|\b0 is no difference|\(403\)",
    r"(?:per|worth of) 1,000 questions",
    r"(?:missing|For a verdict): [^;.]*(?:\.\d[^;.]*)*",  # a forecast, scored by benchmarks.coverage.forecasts
    r"needs (?:about )?N more|needs tens of thousands more|judged after about N more|about N(?: to N)? rated questions",
    r"within about [\w ]+ at today's rate",
    r"reward a question -?D -?D ",  # the ends of an axis
    r"against always \w+ [+-]?\$?\d[\d.]*(?: \([+-]?\$?\d[\d.]* to [+-]?\$?\d[\d.]*\)| to [+-]?\$?\d[\d.]*)",  # costs
    r"\{input: 0\.0, output: 0\.0\}|The page: \S+",
    r"D (?:llm calls?|prompt tokens?|completion tokens?|seconds \w+)",
    r"Latency [^;]*; median D m?s|Feedback to policy D m?s median of the last N|Learning lag D m?s",
    r"S to S interval of the reward|not known yet reward per question|S reward per question, routing",
    r"Who wrote book \d+\?|How many pages has book \d+\?",
    r"P of the day is over|raises the price N-fold|its D dollars of the day",
    r"weight of cost [^│%]*?(?: │)? P (?:│ )?\w+ P(?:,? \w+ P)*",
    r"(?<= %)(?: │)? (?:S|\N{EN DASH})(?: (?:│ +)?S(?: \(S)? to S)?",  # what a kind earns
    r"kind of question weight of cost [\w ,]+? probabilities",  # kinds that vary with the draws
    r"(?i)these N kinds explain P|kinds of questions explain P",
    r"(?:these|(?:of these, )?the newest) N[ │]+P[ │]+\w+ P(?:,? \w+ P)*",  # means of all: test_policy_map.py
    r"the N questions most likely to get \w+(?: P(?: \w+ P)*)?",
    r"│ [^│]*most likely[^│]* │[^│]*│[^│]*│[^│]*│[^│]*│[^│]*│",
    r"\(N: a task, [^)]*\)|of N questions that other arms answered",
    r"Put N unrated answers|GET /v1/\w+|\(D m?s ago\)",
)


def _matches(sentences: Iterable[Sentence], text: str) -> Iterator[tuple[Sentence, re.Match[str]]]:
    for sentence in sentences:
        for found in sentence.pattern.finditer(text):
            yield sentence, found


def _is_same(shown: str | None, counted: str | None) -> bool:
    """Whether two texts are equal. Decimal numbers may differ by a unit of the last digit: sums are rounded."""
    if shown is None or counted is None or "." not in shown:
        return shown == counted
    numbers = [[float(one.replace(",", "")) for one in re.findall(_D, text)] for text in (shown, counted)]
    same = [re.sub(_D, "", text) for text in (shown, counted)]
    digits = len(re.findall(r"\.(\d+)", shown)[0])
    near = all(abs(a - b) <= 1.01 * 10.0**-digits for a, b in zip(*numbers, strict=False))
    return same[0] == same[1] and near


def check(text: str, store: Counted, *, screen: str) -> set[str]:
    """Assert that each number of a screen is that of the store. Returns the sentences of the screen."""
    covered, said = [False] * len(text), set()
    sentences = OF_DECISION if store.decision else SENTENCES
    for sentence, found in _matches((*sentences, *AGREED), text):
        expected = sentence.counted(store, found)
        for name, text_of in expected.items():
            assert _is_same(found[name], text_of), (screen, found[0], name, text_of)
        said.add(sentence.text)
        covered[found.start() : found.end()] = [True] * len(found[0])
    for free in FREE:
        for found in re.finditer(with_numbers(free), text):
            covered[found.start() : found.end()] = [True] * len(found[0])
    rest = [at for at, sign in enumerate(text) if sign.isdigit() and not covered[at]]
    assert not rest, (screen, [text[max(at - 60, 0) : at + 30] for at in rest[:6]])
    return said
