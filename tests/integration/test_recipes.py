"""The recipes for built-in parts: in a copy of the tree, with the files and lines that the pages ask for."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
#: folders of the copy that recipes change; the other entries of the tree are links
CHANGED = ("strategies", "router", "ragbandit", "docs")


def blocks_of(section: str) -> list[str]:
    """The Python blocks from a section of the page on."""
    return re.findall(r"```python\n(.*?)```", PAGE.partition(f"## {section}\n")[2], re.DOTALL)


def code_of(section: str) -> str:
    """The first Python block of a section of the page."""
    return blocks_of(section)[0]


def add_addition(copy: Path, name: str, *, section: str, module: str) -> None:
    """Add the addition of a section of the page: its first Python block is a module, its second the `__init__`."""
    folder = copy / "ragbandit/additions" / name
    shutil.rmtree(folder, ignore_errors=True)  # who tries an example of the page has it in this tree
    folder.mkdir()
    code, addition = blocks_of(section)[:2]
    (folder / module).write_text(code)
    (folder / "__init__.py").write_text(addition)


def add_documented_addition(copy: Path, *, arm: str, policy: str) -> None:
    """Add an addition with an arm `brief`, a policy `steady`, and a page of its own that documents both."""
    folder = copy / "ragbandit/additions/brief"
    folder.mkdir()
    (folder / "arm.py").write_text(arm)
    (folder / "policy.py").write_text(policy)
    offered = 'arms={"brief": "arm:Curt"}, policies={"steady": "policy:MeanReward"}, pages=("brief.md",)'
    (folder / "__init__.py").write_text(
        f"from ragbandit.shared.additions import Addition\n\nADDITION = Addition({offered})\n"
    )
    arms = "| arm | what it does | source | needs | `preset` |\n|---|---|---|---|---|\n| `brief` | asks | | | |\n"
    params = "| param | default |\n|---|---|\n| `epsilon` | 0.1 |\n"
    (copy / "docs/brief.md").write_text(f"# Brief\n\n{arms}\n## `steady`\n\n{params}")


def declared(code: str, *, line: str, above: str) -> str:
    """The class of the page with one more line in its body, as the page asks for a built-in part."""
    return "from typing import ClassVar\n" + code.replace(above, f"    {line}\n{above}", 1)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the tree with the arm, the policy, the additions of the page."""
    copy = tmp_path_factory.mktemp("tree")
    for entry in ROOT.iterdir():
        if entry.name in CHANGED:
            shutil.copytree(entry, copy / entry.name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        elif not entry.name.startswith("."):
            (copy / entry.name).symlink_to(entry)
    arm = declared(code_of("An arm of your own"), line='arm: ClassVar[str] = "curt"', above="    needs: ")
    (copy / "strategies/arms/curt.py").write_text(arm)
    policy = declared(code_of("A policy of your own"), line='algorithm: ClassVar[str] = "mine"', above="    needs = ")
    (copy / "router/policies/algorithms/mine.py").write_text(policy)
    lines = {
        "strategies.md": "| arm | | | | |\n|---|---|---|---|---|\n| `curt` | | | | |\n",
        "policies.md": "## `mine`\n\n| param | default |\n|---|---|\n| `epsilon` | 0.1 |\n",
        "rows.md": "| my own | `strategies/arms` | `curt`, `mine` | |\n",
    }
    for page, text in lines.items():
        file = copy / "docs" / page
        file.write_text(f"{file.read_text('utf-8')}\n{text}", "utf-8")
    add_documented_addition(copy, arm=arm.replace("curt", "brief"), policy=policy.replace("mine", "steady"))
    add_addition(copy, "subtitles", section="A form of documents of your own", module="reader.py")
    add_addition(copy, "lines", section="A retriever of your own", module="retriever.py")
    add_addition(copy, "backlog", section="A chore of your own", module="chore.py")
    add_addition(copy, "arm_list", section="An interface of your own", module="endpoints.py")
    add_addition(copy, "hurry", section="A guard of your own", module="step.py")
    return copy


def run(tree: Path, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(tree)}
    command = [sys.executable, *arguments]
    ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_contracts_find_a_built_in_arm_and_policy(tree):
    """A class in the folder of built-in arms or policies that declares its name passes all tests of its contract."""
    tests = ("strategies/arms/test_arm_contract.py", "strategies/prompting/test_paper_prompts.py")
    files = [f"tests/unit/{test}" for test in (*tests, "router/policies/test_policy_contract.py")]
    options = ("-v", "-n", "0", "-p", "no:cacheprovider", "-k", "curt or mine or arms_use")
    printed = run(tree, "-m", "pytest", *options, *files)
    assert {"curt", "mine"} <= set(re.findall(r"\[(\w+)[^]]*\] PASSED", printed)), printed


def test_the_page_of_an_addition_documents_its_arms_and_policies(tree):
    """An arm and a policy of an addition need no line in a file outside its folder, its tests and its own page."""
    tests = (
        "unit/docs/test_rows.py",
        "unit/strategies/test_strategies_doc.py",
        "integration/policies/test_policies_doc.py",
    )
    names = "each_arm_and_policy or every_arm_is or needs_are or presets_are or (every_param and (steady or mine))"
    options = ("-v", "-n", "0", "-p", "no:cacheprovider", "-k", names)
    printed = run(tree, "-m", "pytest", *options, *(f"tests/{test}" for test in tests))
    assert printed.count("PASSED") == 6, printed


def test_a_guard_in_an_addition_decides_and_is_explained(tree):
    """A step in a folder of ragbandit/additions/ excludes an arm from the draw, and `explain` has its sentence."""
    program = """
from ragbandit import Router
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.explanations.explain import explain

arms = {"fast": {"run_by": "caller"}, "slow": {"run_by": "caller", "facts": {"slow": True}}}
settings = Settings.model_validate({"arms": arms, "data_dir": "data", "encoder": {"model": "hashing"}})
with Router.open(settings, jobs=MemoryJobs()) as router:
    decision = router.route("Who?", context={"hurry": True})
    print(decision.arms, *explain(router.store, decision.id, rule=closing_rule(settings.learning)).reasons)
"""
    printed = run(tree, "-c", program)
    assert printed.startswith("('fast',)")
    assert "Left out, since the caller was in a hurry: slow." in printed


def test_a_form_of_documents_in_an_addition_is_read(tree):
    """A folder of ragbandit/additions/ with a reader makes `index build` read files of one more ending."""
    (tree / "films").mkdir()
    (tree / "films" / "jaws.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nA shark comes.\n")
    program = """
from pathlib import Path
from ragbandit.strategies.retrievers.corpus import read_corpus
print([passage.text for passage in read_corpus(Path("films"))])
"""
    assert run(tree, "-c", program) == "['A shark comes.']\n"


def test_a_chore_in_an_addition_is_done(tree):
    """A folder of ragbandit/additions/ with a chore makes every process that learns do it."""
    program = """
import logging, sys
from ragbandit.shared.additions import loaded
from ragbandit.testing.chores import check_chore, learning_process
from ragbandit.workers.chores import start_chores
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(name)s: %(message)s")
logging.getLogger("ragbandit").disabled = True
check_chore(loaded("chores")["backlog"])
with learning_process({}) as context:
    routines = start_chores(context)
    for routine in routines:
        routine.close()
"""
    lines = run(tree, "-c", program).splitlines()
    assert lines.count("ragbandit.backlog: the ledger has 0 rows") == 2


def test_an_interface_in_an_addition_is_served(tree):
    """A folder of ragbandit/additions/ with a door adds its endpoints and their text to the service, and the door
    follows the contract.
    """
    program = """
from ragbandit.router.api.app import ENDPOINTS, create_app
from ragbandit.shared.additions import loaded
from ragbandit.testing.doors import check_door

api = create_app(lambda: None).openapi()
print(*[tag["name"] for tag in api["tags"]], api["paths"]["/v1/arms"]["get"]["summary"])
print(*[endpoint.rule.roles for endpoint in ENDPOINTS if endpoint.path == "/v1/arms"][0] - {"admin"})
check_door(loaded("doors")["arm_list"])
"""
    printed = run(tree, "-c", program)
    assert re.fullmatch(r"Decisions .*Operations Arms List the arms\napp\n", printed)


def test_a_retriever_in_an_addition_is_built_and_searched(tree):
    """The addition of the page keeps the contract of retrievers, and its name builds and opens its index."""
    (tree / "river.jsonl").write_text('{"id": "v", "title": "Vistula", "text": "A river."}\n')
    program = """
from pathlib import Path
from ragbandit.additions.lines.retriever import Lines
from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.retrievers.corpus import read_corpus
from ragbandit.testing.retrievers import RETRIEVER_CHECKS
from ragbandit.workers.setup.retrievers import retriever_kind, search_once

for check in RETRIEVER_CHECKS:
    check(Lines)
kind = retriever_kind(Settings(data_dir="data", retriever={"name": "lines"}))
try:
    kind.open()
except ConfigError as error:
    print(error.field)
print(kind.built(lambda: read_corpus(Path("river.jsonl")), lambda done: None)["passages"])
print([hit.passage.id for hit in search_once(kind.open(), query="a river", k=3)])
"""
    assert run(tree, "-c", program).split("\n")[:3] == ["retriever.index", "1", "['v']"]
