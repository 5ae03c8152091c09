"""The tree is as docs/architecture.md says."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
#: dialect -> (words that only its requests and replies have, files of the core that know them)
DIALECTS = {
    "messages": (
        {"tool_use", "tool_result", "input_schema", "stop_sequences", "content_block", "content_block_delta"}
        | {"redacted_thinking", "input_json", "message_start", "message_delta", "max_tokens_to_sample", "end_turn"},
        {
            "ragbandit/shared/dialects/thoughts.py",  # blocks with thoughts, in requests of either dialect
            "ragbandit/shared/model_servers/fitting",  # the table of what each kind of server takes
            "ragbandit/shared/model_servers/request_repairs.py",  # parameters that a server may refuse
            "workers/verbs/model_abilities.py",  # names of abilities in lists of models
        },
    )
}
#: code that reads a header of a request
READS = re.compile(r"\b(?:request|exchange)\.headers|\b(?:scope|outer)\['headers'\]")


def test_no_circles():
    """No two files of the product import each other in a circle, also not by imports inside functions."""
    graph = grimp.build_graph("ragbandit", exclude_type_checking_imports=True)
    packages = {".".join(name.split(".")[:-1]) for name in graph.modules}  # their own __init__ is left out
    files = graph.modules - packages
    TopologicalSorter({name: graph.find_modules_directly_imported_by(name) & files for name in files}).prepare()


def test_rooms_are_described():
    """docs/architecture.md has a row for every room of router/, strategies/ and ragbandit/."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = [
        f"{part}/{folder.name}/"
        for part in ("router", "strategies", "ragbandit")
        for folder in (ROOT / part).iterdir()
        if folder.is_dir() and not folder.is_symlink() and any(folder.glob("*.py"))
    ]
    assert [room for room in sorted(rooms) if f"| `{room}`" not in text and f"`{room}`" not in text] == []


def test_headers_are_read_in_named_files():
    """The docstring of question_headers.py names every other file of router/api/ that reads headers of a request, and
    the docstring of an addition names the headers that it reads.
    """
    folder = ROOT / "router" / "api"
    one = folder / "schemas" / "question_headers.py"
    named = ast.get_docstring(ast.parse(one.read_text(encoding="utf-8"))) or ""
    files = {file: ast.unparse(ast.parse(file.read_text(encoding="utf-8"))) for file in folder.rglob("*.py")}
    readers = {str(file.relative_to(folder)) for file, code in files.items() if READS.search(code)}
    assert "edge.py" in readers
    assert [reader for reader in readers if reader not in named and folder / reader != one] == []
    additions = ROOT / "ragbandit" / "additions"
    codes = {file: ast.unparse(ast.parse(file.read_text(encoding="utf-8"))) for file in additions.rglob("*.py")}
    others = {file.relative_to(additions).parts[0] for file, code in codes.items() if READS.search(code)}
    says = {
        name: ast.get_docstring(ast.parse((additions / name / "__init__.py").read_text("utf-8"))) for name in others
    }
    assert [name for name in sorted(others) if " headers " not in (says[name] or "")] == []


def test_a_dialect_is_known_only_in_its_folder():
    """Only the addition of a dialect has its words; others ask the registry."""
    for folder in ("ragbandit/shared", "router", "strategies", "workers", "ragbandit/client"):
        for file in (ROOT / folder).rglob("*.py"):
            path, text = file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")
            if not any(word in text for words, _ in DIALECTS.values() for word in words):
                continue
            nodes = ast.walk(ast.parse(text))
            texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
            for dialect, (words, further) in DIALECTS.items():
                if not path.startswith(tuple(further)):
                    assert not texts & words, (path, dialect, texts & words)
