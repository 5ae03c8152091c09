"""The recipes for built-in parts: in a copy of the tree, with the files and lines that the pages ask for."""

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
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
    add_addition(copy, "lines", section="A retriever of your own", module="retriever.py")
    add_addition(copy, "backlog", section="A chore of your own", module="chore.py")
    add_addition(copy, "arm_list", section="An interface of your own", module="endpoints.py")
    return copy


def run(tree: Path, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(tree)}
    command = [sys.executable, *arguments]
    ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


#: tests of the contracts, and the tests that read the pages
CONTRACTS = (
    "unit/strategies/arms/test_arm_contract.py",
    "unit/strategies/prompting/test_paper_prompts.py",
    "unit/router/policies/test_policy_contract.py",
)
PAGES = (
    "unit/docs/test_rows.py",
    "unit/strategies/test_strategies_doc.py",
    "integration/policies/test_policies_doc.py",
)
NAMES = "curt or mine or steady or arms_use or each_arm_and_policy or every_arm_is or needs_are or presets_are"


@pytest.fixture(scope="module")
def passed(tree):
    """File -> its tests that pass in the copy."""
    options = ("-v", "-n", "0", "-p", "no:cacheprovider", "-k", NAMES)
    printed = run(tree, "-m", "pytest", *options, *(f"tests/{test}" for test in (*CONTRACTS, *PAGES)))
    found = defaultdict(list)
    for file, test in re.findall(r"^tests/(\S+?)::(.*) PASSED", printed, re.MULTILINE):
        found[file].append(test)
    return found


def test_the_contracts_find_a_built_in_arm_and_policy(passed):
    """A class in the folder of built-in arms or policies that declares its name passes all tests of its contract."""
    tests = [test for file in CONTRACTS for test in passed[file]]
    assert {"curt", "mine"} <= {name for test in tests for name in re.findall(r"\[(\w+)[^]]*\]", test)}, tests


def test_the_page_of_an_addition_documents_its_arms_and_policies(passed):
    """An arm and a policy of an addition need no line in a file outside its folder, its tests and its own page."""
    tests = [test for file in PAGES for test in passed[file]]
    of_policies = {name for test in tests if "every_param" in test for name in re.findall(r"\[(\w+)", test)}
    assert of_policies == {"steady", "mine"}
    assert sum("every_param" not in test for test in tests) == 4, tests


#: name of an addition -> code that prints what it does
PROGRAMS = {
    "backlog": """
import logging
from ragbandit.testing.chores import check_chore, learning_process
from ragbandit.workers.chores import start_chores

logging.basicConfig(level="INFO", stream=sys.stdout, format="%(name)s: %(message)s", force=True)
logging.getLogger("ragbandit").disabled = True
check_chore(load_offered("chores")["backlog"])
with learning_process({}) as context:
    routines = start_chores(context)
    for routine in routines:
        routine.close()
""",
    "arm_list": """
from ragbandit.router.api.app import ENDPOINTS, create_app
from ragbandit.testing.doors import check_door

api = create_app(lambda: None).openapi()
print(*[tag["name"] for tag in api["tags"]], api["paths"]["/v1/arms"]["get"]["summary"])
print(*[endpoint.rule.roles for endpoint in ENDPOINTS if endpoint.path == "/v1/arms"][0] - {"admin"})
check_door(load_offered("doors")["arm_list"])
""",
    "lines": """
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
print(kind.build_index(lambda: read_corpus(Path("river.jsonl")), lambda done: None)["passages"])
print([hit.passage.id for hit in search_once(kind.open(), query="a river", k=3)])
""",
}


@pytest.fixture(scope="module")
def printed(tree):
    """Name of an addition -> what its program prints; all run in one process of the copy."""
    (tree / "river.jsonl").write_text('{"id": "v", "title": "Vistula", "text": "A river."}\n')
    head = "import sys\nfrom ragbandit.shared.additions import load_offered\n"
    done = run(tree, "-c", head + "".join(f"print('=== {name}'){code}" for name, code in PROGRAMS.items()))
    texts = re.split(r"^=== (\w+)\n", done, flags=re.MULTILINE)[1:]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def test_a_chore_in_an_addition_is_done(printed):
    """A folder of ragbandit/additions/ with a chore makes every process that learns do it."""
    assert printed["backlog"].splitlines().count("ragbandit.backlog: the ledger has 0 rows") == 2


def test_an_interface_in_an_addition_is_served(printed):
    """A folder of ragbandit/additions/ with a door adds its endpoints and their text to the service, and the door
    follows the contract.
    """
    assert re.match(r"Decisions .*Operations Arms List the arms\napp\n", printed["arm_list"])


def test_a_retriever_in_an_addition_is_built_and_searched(printed):
    """The addition of the page keeps the contract of retrievers, and its name builds and opens its index."""
    assert printed["lines"].split("\n")[:3] == ["retriever.index", "1", "['v']"]
