"""No fact is read by a search in the text of JSON, in SQL or in Python: callers write into the same JSON."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from ragbandit.router.storage.sql import tables

ROOT = Path(__file__).parents[2]
ROOMS = ("router", "strategies", "workers", "migrations", "ragbandit/shared", "ragbandit/client", "ragbandit/additions")
#: place -> why it may look at the text of JSON
ALLOWED = {
    "router/offline/logs/batches.py:_with_fact": "narrows what is parsed of a log, in one pass over the column",
}
#: columns whose text is JSON
COLUMNS = {
    column.name
    for table in tables.metadata.sorted_tables
    for column in table.columns
    if "JSON" in (column.comment or "")
}
#: such columns whose rows in Python have no other value under this name
RAW = {"facts", "request", "made_by", "surrogates", "sources", "reply", "totals", "scopes"} & COLUMNS
_NAMES = "|".join(sorted(COLUMNS))
#: methods of SQLAlchemy's columns that no text of Python has
_SEARCHES = {"like", "ilike", "notlike", "not_like", "notilike", "not_ilike", "contains", "icontains", "regexp_match"}
_SEARCHES |= {"regexp_replace", "istartswith", "iendswith"}
_ENDS = {"startswith", "endswith", "op", "bool_op"}
_FUNCTIONS = {"instr", "strpos", "position", "substr", "substring", "charindex", "regexp_count", "regexp_like", "glob"}
_SQL = re.compile(
    rf"\b({_NAMES})(::text)?\s+(not\s+)?(like|ilike|glob|regexp|similar\s+to|~\*?)(?!\w)"
    rf"|\b({'|'.join(_FUNCTIONS)}|regexp_\w+)\s*\(\s*(\w+\.)?({_NAMES})\b",
    re.IGNORECASE,
)
#: a text that could be a piece of JSON: a quoted word, or the end of a key
_PIECE = re.compile(r'"[^"\s]+"|"\s?:')
_KEY = re.compile(r'"\s?:|\{"')
#: a pattern for a key of JSON
_PATTERN = re.compile(r'"\)?(\\s\*| ?\??)*:')
_METHODS = {"find", "rfind", "index", "count", "startswith", "split", "partition", "rpartition", "removeprefix"}
_MATCHERS = {"compile", "search", "match", "fullmatch", "findall", "finditer", "split", "sub", "match_substring"}
_MATCHERS |= {"match_substring_regex", "count_substring", "find_substring", "starts_with"}


def _text(node: ast.AST) -> str | None:
    """The text of a constant, with {} for the values in an f-string; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) or "{}" for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (_text(node.left) or "{}") + (_text(node.right) or "{}")
    return None


def _is_raw(node: ast.AST, *, names: set[str]) -> bool:
    """Whether the value is the text of a column with JSON: `row["facts"]`, `row.facts`, or a name for one."""
    if isinstance(node, ast.BoolOp):
        return any(_is_raw(value, names=names) for value in node.values)
    if isinstance(node, ast.Subscript):
        return _text(node.slice) in RAW
    if isinstance(node, ast.Attribute):
        return node.attr in RAW and isinstance(node.value, ast.Name) and node.value.id == "row"
    return isinstance(node, ast.Name) and node.id in names


def _is_column(node: ast.AST) -> bool:
    """Whether the value is a column with JSON: `decisions.c.facts` or `decisions.c["facts"]`."""
    if isinstance(node, ast.Attribute):
        return node.attr in COLUMNS and isinstance(node.value, ast.Attribute) and node.value.attr == "c"
    return isinstance(node, ast.Subscript) and _text(node.slice) in COLUMNS and getattr(node.value, "attr", "") == "c"


def _is_search(node: ast.AST, *, raw: set[str], pieces: set[str]) -> bool:
    """raw: names of texts of columns. pieces: names of texts that could be pieces of JSON."""
    if isinstance(node, ast.Constant | ast.JoinedStr):
        return bool(_SQL.search(_text(node) or ""))

    def is_like(value: ast.AST, pattern: re.Pattern[str]) -> bool:
        return bool(pattern.search(_text(value) or "")) or (isinstance(value, ast.Name) and value.id in pieces)

    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        return is_like(node.left, _PIECE) or _is_raw(node.comparators[0], names=raw)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    name, given = node.func.attr, [*node.args, *(keyword.value for keyword in node.keywords)]
    if name in _SEARCHES or (name in _ENDS and _is_column(node.func.value)):
        return True
    if name in _FUNCTIONS and any(map(_is_column, given)):
        return True
    if name in _MATCHERS and any(is_like(value, _PATTERN) for value in given):
        return True
    return name in _METHODS and bool(node.args) and (is_like(node.args[0], _KEY) or _is_raw(node.func.value, names=raw))


def _named(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """Each (name, value) that the code assigns."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = [*zip(target.elts, node.value.elts, strict=False)]
                yield from ((name.id, value) for name, value in pairs if isinstance(name, ast.Name))
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value


def searches(source: str) -> list[tuple[int, str]]:
    """(line, function or "") of each search in the text of JSON."""
    nodes = [*ast.walk(ast.parse(source))]
    named = [*_named(nodes)]
    pieces = {name for name, value in named if _KEY.search(_text(value) or "") or _PATTERN.search(_text(value) or "")}
    raw = {name for name, value in named if not isinstance(value, ast.Name) and _is_raw(value, names=set())}
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = []
    for node in nodes:
        if _is_search(node, raw=raw, pieces=pieces):
            line = node.lineno
            inside = [each for each in functions if each.lineno <= line <= (each.end_lineno or 0)]
            found.append((line, min(inside, key=lambda each: each.lineno).name if inside else ""))
    return found


PLANTED = [
    # SQL
    "query.where(decisions.c.facts.like('%\"erased\":%'))",
    "query.where(decisions.c.request.contains(pattern))",
    'query.where(~decisions.c.facts.ilike("%erased%"))',
    "query.where(column.regexp_match(pattern))",
    "query.where(decisions.c.facts.startswith('{\"erased\"'))",
    'query.where(decisions.c["made_by"].op("~")(pattern))',
    'query.where(func.instr(decisions.c.facts, "erased") > 0)',
    'query.where(func.strpos(decisions.c.request, "forced") > 0)',
    "query.where(func.substr(decisions.c.facts, 1, 9) == prefix)",
    'run(connection, "SELECT id, facts LIKE ? AS is_erased FROM decisions", pattern)',
    'run(connection, "SELECT id FROM decisions WHERE d.request NOT LIKE ?", pattern)',
    'run(connection, "SELECT id FROM decisions WHERE instr(d.facts, ?) > 0", word)',
    'run(connection, f"SELECT id FROM decisions WHERE facts::text ~ {pattern}")',
    "run(connection, \"SELECT id FROM decisions WHERE position('x' in id) > 0 AND substring(facts from 'x') = 'x'\")",
    # Python
    "is_imported = f'\"{IMPORTED}\":' in facts",
    "is_erased = '\"erased\"' not in text",
    "is_forced = '\"forced\":true' in (row['request'] or '')",
    "has_draw = LabelRequest.key in row['facts']",
    "facts = row['facts']\nhas_draw = LabelRequest.key in facts",
    "is_agent = 'agent' in row.request",
    'LINKED = f\'"{FAILOVER}":{{"arm":\'\nis_linked = LINKED in request',
    "place = text.find('\"erased\":')",
    "count = text.count(f'\"{key}\":')",
    "found = row['facts'].find(key)",
    "head, _, tail = text.partition('\"task\":')",
    "pattern = re.compile(r'\"imported\" ?:')",
    "found = re.findall(rf'\"({names})\"\\s*:', text)",
    "flags = compute.match_substring_regex(texts, rf'\"{key}\" ?: ?true')",
]
CLEAN = [
    "is_imported = IMPORTED in object_or_empty(row['facts'])",
    "is_imported = IMPORTED in decision.facts",
    "parsed = json.loads(row['facts'])\nis_imported = IMPORTED in parsed",
    "query.where(decisions.c.session == session, decisions.c.facts.is_not(None))",
    'run(connection, "SELECT facts FROM decisions WHERE text LIKE ?", pattern)',
    "if name.startswith('x-') and '\"' in text: pass",
]


@pytest.mark.parametrize("source", PLANTED)
def test_a_planted_search_is_noticed(source):
    """Every form of a search in JSON's text is noticed."""
    assert searches(source)


@pytest.mark.parametrize("source", CLEAN)
def test_reading_by_parsing_is_no_search(source):
    """Reading a parsed column, and a search in another column, are no searches in JSON."""
    assert not searches(source)


def test_no_fact_is_searched_in_the_text_of_json():
    """The product has no search in the text of JSON but the named ones, which only narrow what is parsed."""
    places = set()
    for room in ROOMS:
        for file in (ROOT / room).rglob("*.py"):
            path = file.relative_to(ROOT).as_posix()
            found = searches(file.read_text(encoding="utf-8"))
            places |= {f"{path}:{function or line}" for line, function in found}
    assert places == set(ALLOWED)
