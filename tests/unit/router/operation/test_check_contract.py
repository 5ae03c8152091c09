"""The contract of checks of the settings: the core's own check follows it, and it names what a check does wrong."""

import itertools
import re
import socket
import time

import pytest

from ragbandit.router.config.finding import Finding
from ragbandit.router.operation.findings import findings_of_settings
from ragbandit.shared.errors import ConfigError
from ragbandit.testing.settings_checks import check_settings_check

LATE = {"budget": {"seconds": 1000.0}}
ARM = {"run_by": "caller"}
#: settings that the core warns of
WARNED = [
    {"arms": {"a": ARM}},
    {
        "arms": {"a.b": ARM, "c": ARM},
        "policy": {"incumbent": "c"},
        "rules": [{"name": "r", "when": {"door": ["route"]}, "arms": ["a.b"]}],
    },
    {"database_url": "postgresql://db/x"},
    {"redis_url": "redis://elsewhere:6379"},
    {"server": {"open_metrics": True, "host": "0.0.0.0"}},
    {"server": {"model_aliases": {"small": "ragbandit/mine"}}, "tenants": {"t": {"dollars_per_day": 1.0}}},
]


def good(settings):
    """Warns of a long time limit, and refuses a shorter one than a second."""
    if settings.budget.seconds < 1.0:
        raise ConfigError("it is too short", field="budget.seconds", remedy="set it above 1")
    if settings.budget.seconds > 900.0:
        yield Finding("warning", "budget.seconds", "it is long", "set it to 900")


def finding(**parts):
    """A check with a finding that differs from a good one."""
    fields = {"severity": "warning", "about": "budget.seconds", "what": "it is long", **parts}
    return lambda settings: [Finding(**fields)] if settings.budget.seconds > 900.0 else []


def refusing(error):
    """A check that raises this error for a long time limit."""

    def check(settings):
        if settings.budget.seconds > 900.0:
            raise error
        return []

    return check


def connecting(settings):
    if settings.budget.seconds > 900.0:
        socket.create_connection(("localhost", 9), timeout=1.0)
    return []


def connecting_by_address(settings):
    with socket.socket() as line:
        line.connect(("127.0.0.1", 9))
    return []


def changing(settings):
    object.__setattr__(settings, "data_dir", f"{settings.data_dir}x")
    return []


def counting():
    """A check whose findings differ from call to call."""
    counts = itertools.count()
    return lambda settings: [*finding(what=f"call {next(counts)}")(settings)]


@pytest.mark.parametrize("check", [good, finding(), finding(severity="problem", remedy="set it to 900")])
def test_a_check_follows_the_contract(check):
    """A check that finds what it should, twice alike, follows the contract."""
    check_settings_check(check, warned=[LATE], fine=[{"budget": {"seconds": 800.0}}])
    if check is good:
        check_settings_check(check, refused=[{"budget": {"seconds": 0.5}}])


def test_the_check_of_the_core_follows_the_contract():
    """What `ragbandit validate` warns of in the core's settings is named by keys that exist."""
    check_settings_check(findings_of_settings, warned=WARNED)


@pytest.mark.parametrize(
    ("check", "fault"),
    [
        (lambda settings: [Finding("warning", "arms", "there are some")], "not content with the default settings"),
        (lambda settings: [], "no finding for {'budget'"),
        (finding(severity="error"), "the severity is 'error'"),
        (finding(about="budget.secs"), "'budget.secs', which is no dotted key"),
        (finding(what=" "), "has no words"),
        (finding(what="one\ntwo"), "a finding has several lines"),
        (lambda settings: ["it is long"] if settings.budget.seconds > 900.0 else [], "something else than a Finding"),
        (refusing(KeyError("arms")), "another error than ConfigError: KeyError"),
        (refusing(ConfigError("no", field="budget", remedy="yes")), "raised ConfigError.* for valid settings"),
        (connecting, "`check` connects to"),
        (connecting_by_address, "`check` connects to"),
        (changing, "`check` changed the settings"),
        (counting(), "for the same settings"),
    ],
)
def test_a_check_that_breaks_the_contract_is_named(check, fault):
    """The contract says what a check does wrong."""
    with pytest.raises(AssertionError, match=fault):
        check_settings_check(check, warned=[LATE])


def test_a_slow_check_is_named(monkeypatch):
    """A check that takes a second of processor time would hold up `validate`, which calls it for each fault."""
    monkeypatch.setattr(time, "process_time", itertools.count(0.0, 2.0).__next__)
    with pytest.raises(AssertionError, match=r"took 2.0 s of processor time"):
        check_settings_check(good, warned=[LATE])


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (None, "raised no ConfigError"),
        (ConfigError("no", field="budget.secs", remedy="yes"), "'budget.secs', which is no dotted key"),
        (ConfigError("no", remedy="yes"), "field of the error is ''"),
        (ConfigError("no", field="budget.seconds"), "the error has no remedy"),
    ],
)
def test_a_refusal_has_a_key_and_a_remedy(error, fault):
    """Settings with which no service can start are refused by an error with a key and a remedy."""
    check = finding() if error is None else refusing(error)
    with pytest.raises(AssertionError, match=re.escape(fault)):
        check_settings_check(check, refused=[LATE])


def test_a_check_without_examples_is_not_checked():
    """The author gives settings for which his check does something."""
    with pytest.raises(AssertionError, match="nothing is checked"):
        check_settings_check(good)
