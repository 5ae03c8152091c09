"""Log lines: one JSON object in a line, with the ids that are bound, and without secrets."""

import json
import logging
import math

from ragbandit.router.telemetry.logs import JsonLines, TextLines, WithIds, log_fields, set_service_log


def line(message="done", *, form=None, error=None, **facts):
    record = logging.LogRecord("ragbandit.x", logging.INFO, "f", 1, message, (), error)
    record.__dict__ |= facts
    assert WithIds().filter(record)
    return (form or JsonLines()).format(record)


def test_a_line_is_one_json_object():
    """Time, level, logger and message come first; facts keep their numbers, other values are texts."""
    text = line("two\nlines", action="answer", times=3, share=0.5, nan=math.nan, arms=("a", "b"))
    assert "\n" not in text
    printed = json.loads(text)
    assert list(printed)[:4] == ["time", "level", "logger", "message"]
    assert printed["message"] == "two\nlines"
    assert (printed["times"], printed["share"], printed["nan"], printed["arms"]) == (3, 0.5, "nan", "('a', 'b')")
    assert printed["time"].endswith("Z")


def test_bound_ids_are_in_every_line():
    """Ids of request, decision and trace stand in each line of the block, the inner ones with the outer."""
    with log_fields(request="r1"), log_fields(decision="d1", trace="t1"):
        printed = json.loads(line())
        assert (printed["request"], printed["decision"], printed["trace"]) == ("r1", "d1", "t1")
        assert json.loads(line(decision="d2"))["decision"] == "d2"
        assert line(form=TextLines(), model="a\nb").endswith("model='a\\nb' request=r1 decision=d1 trace=t1")
    assert "request" not in json.loads(line())


def test_secrets_are_in_no_line():
    """Neither in the message, nor in a fact, nor in a traceback."""
    try:
        raise ValueError("https://user:hunter2@host/")
    except ValueError as error:
        text = line("at https://user:hunter2@host", error=(ValueError, error, None), url="redis://:hunter2@host")
    assert "hunter2" not in text
    assert "ValueError" in json.loads(text)["exception"]


def test_a_service_logs_in_its_format_from_info_on():
    """Handlers with one of RagBandit's formats get the other one; other handlers are not changed."""
    root, package = logging.getLogger(), logging.getLogger("ragbandit")
    level = package.level
    ours, theirs = logging.NullHandler(), logging.NullHandler()
    ours.setFormatter(TextLines())
    root.addHandler(ours)
    root.addHandler(theirs)
    try:
        set_service_log("json")
        assert isinstance(ours.formatter, JsonLines)
        assert theirs.formatter is None
        assert package.level == logging.INFO
    finally:
        package.setLevel(level)
        root.removeHandler(ours)
        root.removeHandler(theirs)
