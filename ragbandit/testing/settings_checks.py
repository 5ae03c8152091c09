"""Check of the contract of checks of the settings. It needs no test framework, no store and no server.

    def test_mine():
        check_settings_check(MineSection.findings, warned=[{"mine": {"key_env": "UNSET"}}])

It raises AssertionError if the check breaks the contract.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, get_args
from unittest.mock import patch

from ragbandit.router.config.finding import Finding, Severity
from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import Json

#: the checked function: `Section.findings` of an addition to the top level, or a function that calls that of a section
CheckSettings = Callable[[Settings], Iterable[Finding]]
#: maximum processor time of a check whose modules are loaded, seconds: `validate` calls it again for each fault
_MOST_S: Final = 1.0
_ARM: Final[Mapping[str, Json]] = {"run_by": "caller"}
_USUAL: Final[Mapping[str, Json]] = {"arms": {"mine": _ARM, "other": _ARM}, "encoder": {"model": "hashing"}}


def check_settings_check(
    check: CheckSettings,
    *,
    warned: Sequence[Mapping[str, Json]] = (),
    refused: Sequence[Mapping[str, Json]] = (),
    fine: Sequence[Mapping[str, Json]] = (),
) -> None:
    """Runs the check on settings of its author, and on settings without faults: two arms, else the defaults.

    warned: keys of the configuration for which the check has findings. refused: keys with which no service can start.
    fine: keys for which the check has no finding.
    """
    assert warned or refused, "nothing is checked: give settings for which the check has a finding or an error"
    for keys in ({}, *fine):
        findings = _run_twice(check, keys)
        assert findings == [], f"`check` is not content with {keys or 'the default settings'}: {findings!r}"
    for keys in warned:
        findings = _run_twice(check, keys)
        assert isinstance(findings, list), f"`check` raised {findings!r} for valid settings: {keys}"
        assert findings, f"`check` has no finding for {keys}"
        for finding in findings:
            _check_finding(finding, keys=keys)
    for keys in refused:
        error = _run_twice(check, keys)
        assert isinstance(error, ConfigError), f"`check` raised no ConfigError for {keys}: {error!r}"
        _check_key(error.field or "", keys=keys, place="field of the error")
        assert error.remedy, f"the error has no remedy: {error}"


def _run_twice(check: CheckSettings, keys: Mapping[str, Json]) -> list[Finding] | ConfigError:
    """Run the check twice. Returns its findings or its error, and asserts that both results are equal."""
    settings = _make_settings(keys)
    before = settings.model_dump()
    with _no_connections():
        first = _run(check, settings)
        begun = time.process_time()
        again = _run(check, settings)
        taken_s = time.process_time() - begun
    assert settings.model_dump() == before, "`check` changed the settings"
    is_same = str(again) == str(first) if isinstance(first, ConfigError) else again == first
    assert is_same, f"`check` gave {first!r} and then {again!r} for the same settings"
    assert taken_s < _MOST_S, f"`check` took {taken_s:.1f} s of processor time"
    return first


def _run(check: CheckSettings, settings: Settings) -> list[Finding] | ConfigError:
    try:
        return [*check(settings)]
    except ConfigError as error:
        return error
    except Exception as error:
        raise AssertionError(f"`check` raised another error than ConfigError: {error!r}") from error


def _make_settings(keys: Mapping[str, Json]) -> Settings:
    return Settings.model_validate({**_USUAL, **keys})


@contextmanager
def _no_connections() -> Iterator[None]:
    """Asserts that the block looks up no name of a host, and begins no connection."""
    asked, mine = list[object](), threading.get_ident()

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(*given: Any, **more: Any) -> Any:
            if threading.get_ident() != mine:  # another part of this process connects
                return call(*given, **more)
            asked.append(given[-1])
            raise OSError("a check of the settings connects to nothing")

        return refuse

    look_up, connect = refusing(socket.getaddrinfo), refusing(socket.socket.connect)
    with patch.object(socket, "getaddrinfo", look_up), patch.object(socket.socket, "connect", connect):
        try:
            yield
        finally:
            assert not asked, f"`check` connects to {asked}"


def _check_finding(finding: object, *, keys: Mapping[str, Json]) -> None:
    assert isinstance(finding, Finding), f"`check` gave something else than a Finding: {finding!r}"
    assert finding.severity in get_args(Severity), f"the severity is {finding.severity!r}, none of {get_args(Severity)}"
    _check_key(finding.about, keys=keys, place="`about` of a finding")
    assert finding.what.strip(), f"a finding about {finding.about} has no words in `what`"
    assert "\n" not in finding.line, f"a finding has several lines: {finding.line!r}"


def _check_key(key: str, *, keys: Mapping[str, Json], place: str) -> None:
    """Asserts that there is a setting with this dotted key; it may be unset."""
    is_setting = _has_key(_make_settings(keys).model_dump(), key)
    assert is_setting, f"the {place} is {key!r}, which is no dotted key of the settings"


def _has_key(tree: Any, key: str) -> bool:
    if not isinstance(tree, Mapping):
        return False
    parts = key.split(".")  # the name of an arm may have dots
    heads = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return any(head in tree and (head == key or _has_key(tree[head], key[len(head) + 1 :])) for head in heads)
