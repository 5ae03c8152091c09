"""Patterns and readers of outside text take linear time. Introspection finds new patterns and readers too."""

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import re
import time
from collections import defaultdict
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from re import (
    _constants as codes,  # type: ignore[attr-defined] # the parse tree has no public name
    _parser as parser,  # type: ignore[attr-defined]
)

import pytest

import ragbandit
from ragbandit import checks
from ragbandit.shared.dialects.chat.replies import ModelReply
from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.model_servers import outbound
from ragbandit.shared.model_servers.event_reader import BrokenReply, EventReader
from ragbandit.shared.texts import redaction, text_forms
from ragbandit.workers.judge import rubric

ROOT = Path(ragbandit.__file__).parent
#: length of most texts, and processor seconds: many times what a linear pattern takes, a part of a quadratic one's
SIZE, LIMIT_S = 100_000, 1.0
#: pattern or reader -> longest text that it gets from its callers, characters
CAPS = {
    "passages._DOTTED_END": 16,
    "passages._MAYBE_BEFORE": 16,
    "redaction._SECRETS": 4000,
    "redaction._NAME_ALONE": 1000,
    "redaction._QUERY_NAME": 1000,
    "error_replies.server_message": 1_000_000,
    "replies._FINISH": 100,
    "event_reader": 2_000_000,
    "event_reader, pieces": 500_000,
    "advise.re": 5000,  # a configuration of the operator
    "corpus.re": 2000,  # a constant
    "corpus._DECLARED": 8192,
    "app.re": 5000,  # a page of a library
    "rubric.addresses_judge": 20_000,
    "rubric._ADDRESSES": 20_000,
}
#: modules whose functions of one text are called with the worst texts of all patterns
READERS = (
    *(
        "shared.model_servers.error_replies",
        "shared.model_servers.refusals",
        "shared.model_servers.outbound",
        "shared.dialects.chat.replies",
    ),
    *("shared.texts.redaction", "shared.texts.text_forms", "shared.texts.formats"),
    *(
        "router.learning.reward",
        "additions.evaluation.answer_metrics",
        "strategies.prompting.passages",
        "additions.research_arms.replies",
        "workers.judge.rubric",
    ),
)
_METHODS = ("search", "match", "fullmatch", "sub", "subn", "findall", "finditer", "split")
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)


def _patterns():
    """The patterns of every module by place: (pattern, method that is called), also in calls of `re.search`."""
    found, methods = {}, defaultdict(set)
    for folder in ("shared", "additions", "client", "router", "strategies", "workers", "checks.py"):
        path = (ROOT / folder).resolve()
        for file in [path] if path.is_file() else path.rglob("*.py"):
            for call in (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)):
                if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
                    owner, method = call.func.value.id, call.func.attr
                    methods[owner].add(method)
                    first = call.args[0] if call.args else None
                    if owner == "re" and method in _METHODS and isinstance(first, ast.Constant):
                        flags = sum(getattr(re, name) for name in re.findall(r"re\.([A-Z]+)\b", ast.unparse(call)))
                        found[f"{file.stem}.re:{call.lineno}"] = re.compile(first.value, flags), method
    for module in pkgutil.walk_packages([str(ROOT)], "ragbandit."):
        if module.name.split(".")[1] in ("shared", "additions", "client", "router", "strategies", "workers", "checks"):
            for name, value in vars(importlib.import_module(module.name)).items():
                method = min(methods[name] & {*_METHODS}, default="search")
                place = f"{module.name.split('.')[-1]}.{name}"
                found |= {f"{place}:{at}": (pattern, method) for at, pattern in enumerate(_in(value))}
    return {name: found for found, name in {found: name for name, found in found.items()}.items()}


def _in(value):
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list):
        yield from (pattern for item in value for pattern in _in(item))
    elif value is text_forms._rules:
        yield from _in(value())


def _sample(items):
    """A short text that the items of a parse tree match, roughly."""
    text = ""
    for code, value in items:
        if code is codes.LITERAL:
            text += chr(value)
        elif code in (codes.ANY, codes.NOT_LITERAL):
            text += "b" if value == ord("a") else "a"
        elif code is codes.IN:
            text += next(_members(value))
        elif code in _REPEATS:
            text += _sample(value[2]) * max(1, value[0])
        elif code is codes.BRANCH:
            text += _sample(value[1][0])
        elif code in (codes.SUBPATTERN, codes.ATOMIC_GROUP) or (code is codes.ASSERT and value[0] < 0):
            text += _sample(value[-1] if isinstance(value, tuple) else value)
    return text


def _members(items):
    """Characters of a set, usual ones first."""
    is_in = re.compile(f"[{''.join(map(_piece, items))}]").fullmatch
    yield from filter(is_in, map(chr, (97, 32, 49, 45, 46, 10, 95, 58, 63, *range(33, 0x3100))))
    yield ""


def _piece(item):
    code, value = item
    if code is codes.NEGATE:
        return "^"
    if code is codes.RANGE:
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    letter = str(value).removeprefix("CATEGORY_").removeprefix("NOT_")[0].lower()
    return (
        re.escape(chr(value)) if code is codes.LITERAL else "\\" + (letter.upper() if "NOT_" in str(value) else letter)
    )


def _attacks(items, before=""):
    """(begin, repeated text): what leads to each repetition and each branch of a pattern, and what it repeats."""
    for at, (code, value) in enumerate(items):
        prefix = before + _sample(items[:at])
        parts = {
            codes.BRANCH: lambda value: value[1],
            codes.ATOMIC_GROUP: lambda value: [value],
            **dict.fromkeys(_REPEATS, lambda value: [value[2]]),
            **dict.fromkeys((codes.SUBPATTERN, codes.ASSERT, codes.ASSERT_NOT), lambda value: [value[-1]]),
        }.get(code, lambda _: [])(value)
        if code in _REPEATS and value[1] > 20:
            units = [_sample(value[2])]
            if value[2][0][0] is codes.IN:
                units += [unit + _sample(value[2][1:]) for unit in islice(_members(value[2][0][1]), 4)]
            for unit in units:
                yield from ((prefix, unit), ("", prefix + unit))
        for part in parts:
            yield from _attacks(list(part), prefix)
    yield from (("", before + _sample(items)), ("", before + _sample(items[:-1])))


def _seconds(work, begin, unit, *, longest):
    """Processor seconds for a text of `longest` characters; for a tenth of it if even quadratic time is short."""
    for size in (longest // 10, longest):
        text = begin + unit * (size // len(unit)) + "\x00"
        began = time.process_time()
        work(text)
        seconds = time.process_time() - began
        # Ten times the text takes a hundred times as long if the time is quadratic.
        if seconds > LIMIT_S or seconds * 100 < LIMIT_S:
            break
    return seconds


_CALLS = {
    "sub": lambda pattern, text: pattern.sub("", text),
    "subn": lambda pattern, text: pattern.subn("", text),
    "finditer": lambda pattern, text: list(pattern.finditer(text)),
}


@pytest.mark.timeout(240)
def test_every_pattern_takes_linear_time():
    """The worst of the texts that are made from a pattern's own repetitions takes little processor time."""
    # The patterns are read here and not when tests are collected: that imports and parses the whole product.
    for name, (pattern, method) in _patterns().items():
        if isinstance(pattern.pattern, bytes):
            pattern = re.compile(pattern.pattern.decode("latin-1"))
        call = _CALLS.get(method, lambda pattern, text, method=method: getattr(pattern, method)(text))
        longest = CAPS.get(name.partition(":")[0], SIZE)
        for begin, unit in dict.fromkeys(_attacks(list(parser.parse(pattern.pattern, pattern.flags)))):
            if unit:
                assert _seconds(partial(call, pattern), begin, unit, longest=longest) < LIMIT_S, (name, begin, unit)


def _present(names):
    """The modules of these names, without modules of additions that were left out."""
    for name in names:
        if importlib.util.find_spec(".".join(["ragbandit", *name.split(".")[:2]])):
            yield importlib.import_module(f"ragbandit.{name}")


def _readers():
    """The functions of one text in READERS, and those with further arguments."""
    for module in _present(READERS):
        for function in vars(module).values():
            if inspect.isfunction(function) and function.__module__ == module.__name__ and function.__name__[0] != "_":
                required = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
                if [p.annotation for p in required] in ([str], [object]):
                    yield f"{module.__name__.split('.')[-1]}.{function.__name__}", function
    yield "redaction.without_keys", partial(redaction.without_keys, secrets=["sk-abcdefghijkl mnop", "a b c"])
    yield "rubric.parse_scores", partial(rubric.parse_scores, criteria=["right"])
    for module in _present(["additions.research_arms.replies"]):
        yield "replies.parse_label", partial(module.parse_label, labels=["yes", "no", "partly supported"])
    yield "checks.json_parses", lambda text: checks.json_parses(answer=text, question="", sources=[])
    yield "checks.cites_source", lambda text: checks.cites_source(answer=text, question="", sources=[SOURCE])
    yield "outbound.unpacked", lambda text: outbound.decompressed(text.encode(), encoding="gzip", most=1000)
    yield "event_reader", _read
    yield "event_reader, pieces", partial(_read, size=100)
    yield "chat replies", _take


SOURCE = {"id": "1", "title": "", "text": "a b c d e f g h i", "url": "http://x"}
#: repeated texts that held a reader once, or are like them
UNITS = (
    *(" ", "\n", "a", "1", ".", ",", "'", "-", "_", "a-", "1,", "1.", "://:", ";a=", "?a", "@", "a:", "password="),
    *(
        "pass ",
        "token",
        "Authorization:",
        "bearer ",
        '\\"',
        "{",
        "{},",
        "[",
        "-----BEGIN PRIVATE KEY-----",
        "```",
        "``` ",
    ),
    *("<a", "<", "<head ", "</head", "<think>", "answer is ", "the ", "e\u0301", "\u4e00", "1\u00bd", "score "),
    *("give this ", "=== a", "data:", "data:\n", "data: {}\n\n", ":\n", "\r", "error:a\n", "or ", "(1", " [1"),
)


def _read(text, size=65_536):
    body, reader = text.encode("utf-8", "replace"), EventReader()
    with suppress(BrokenReply):
        for start in range(0, len(body), size):
            list(reader.feed(body[start : start + size]))
        list(reader.end())


def _take(text):
    for message in (
        {"content": text},
        {"reasoning": text, "x": [text]},
        {"tool_calls": [{"id": text, "function": text}]},
    ):
        ModelReply().take({"choices": [{"delta": message, "finish_reason": text}], "model": text})
    ModelReply().take({"error": {"message": text}})


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", dict(_readers()))
def test_a_reader_of_outside_text_takes_linear_time(name):
    """A reader takes little processor time for each of the worst texts, also after the begin of another one."""
    reader, longest = dict(_readers())[name], CAPS.get(name, SIZE)

    def read(text):
        with suppress(ValueError, RagBanditError, BrokenReply, rubric.UnreadableScores):
            reader(text)

    for begin in ("", "<html>", '{"a": [') if name.startswith(("event_reader", "error_replies")) else ("",):
        for unit in UNITS:
            assert _seconds(read, begin, unit, longest=longest) < LIMIT_S, (begin, unit)
