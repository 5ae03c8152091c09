"""Every documented `pip install` line installs what its page then does."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ragbandit.shared.errors import EXTRA_OF
from ragbandit.testing.openai_server import ScriptedServer
from tests.support.additions import marked, needs

from .test_base_install import HIDE, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
LINE = re.compile(r"pip install '\.\[([\w,-]+)\]'")
#: pattern of a line in a code block -> modules that the line needs
_SERVICE = tuple(module for module, extra in EXTRA_OF.items() if extra == "service")
USES = {
    r"ragbandit (up|serve|worker|answer|demo|init)\b|systemctl start ragbandit": _SERVICE,
    r"ragbandit (replay|report .*--html|advise .*--report)\b": ("jinja2", "pyarrow"),
    r"ragbandit (demo|init)\b": ("markdown_it", "pypdf", "semantic_text_splitter", "torch", "transformers"),
    r"ragbandit init\b|OPENAI_API_KEY": ("openai", "aiohttp"),
    r"DATABASE_URL": ("psycopg",),
    r"REDIS_URL": ("redis",),
    r"OTEL_|telemetry:": ("opentelemetry",),
    r"ragbandit mcp\b|/mcp\b": ("mcp",),
}
#: modules of frameworks that the tests run without -> their packages
PACKAGES = {"haystack": "haystack-ai", "llama_index": "llama-index-core", "langchain_core": "langchain-core"}
OURS = {"ragbandit", "my_rag", "my_pipelines"} | sys.stdlib_module_names


def installed_by(extras):
    """Names of all packages that this project and these extras install, also by other packages."""
    waiting = [*PROJECT["dependencies"], *(text for extra in extras for text in EXTRAS[extra])]
    names, seen = set(), set()
    while waiting:
        text = waiting.pop()
        wanted = Requirement(text)
        if text in seen:
            continue
        seen.add(text)
        if wanted.name == PROJECT["name"]:
            waiting += [text for extra in wanted.extras for text in EXTRAS[extra]]
            continue
        names.add(canonicalize_name(wanted.name))
        try:
            further = map(Requirement, metadata.requires(wanted.name) or ())
        except metadata.PackageNotFoundError:  # its marker excludes this Python
            continue
        extras_of = {"", *wanted.extras}
        waiting += [
            str(one) for one in further if not one.marker or any(one.marker.evaluate({"extra": e}) for e in extras_of)
        ]
    return names


def documented():
    """(page, extras of the line, code blocks from this line to the page's next one) for each installation line."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = [*LINE.finditer(text)]
        blocks = [*re.finditer(r"^```\w+\n(.*?)^```|^((?:    [^\n]*\n)+)", text, flags=re.S | re.M)]
        for line, following in zip(lines, [*lines, None][1:], strict=True):
            end = following.start() if following else len(text)
            spans = ((max(block.start(), line.start()), min(block.end(), end)) for block in blocks)
            yield page.relative_to(ROOT).as_posix(), line[1].split(","), "".join(text[a:b] for a, b in spans if a < b)


def modules_of(code):
    """The modules that these code blocks need."""
    needed = {module for pattern, modules in USES.items() if re.search(pattern, code) for module in modules}
    imports = re.findall(r"^ *(?:from|import) ([a-z_]\w*)[\w.]*(?: import|$)", code, flags=re.M)
    return (needed | set(imports)) - OURS


def packages_of(module):
    names = DISTRIBUTIONS.get(module, [PACKAGES.get(module, module)])
    return {canonicalize_name(name) for name in names}


DISTRIBUTIONS = metadata.packages_distributions()
LINES = [*documented()]
README = next(extras for page, extras, _ in LINES if page == "README.md")
#: pages whose line is the first of an installation; the others add extras to README's
FIRST = {"README.md", "docs/tutorial.md"}


@pytest.mark.parametrize(
    ("page", "extras", "code"), marked(LINES), ids=[f"{page}-{','.join(e)}" for page, e, _ in LINES]
)
def test_a_line_installs_what_its_page_uses(page, extras, code):
    """The extras of the line exist, and bring every package that the page's later commands and imports need."""
    assert set(extras) <= EXTRAS.keys()
    brought = installed_by(extras if page in FIRST else [*extras, *README])
    assert [module for module in modules_of(code) if not packages_of(module) & brought] == []


def test_the_lines_are_found():
    """The pages with a first installation do something with it, so that the test above can fail."""
    assert {page for page, _, code in LINES if modules_of(code)} >= FIRST | {"docs/integrations/langgraph.md"}
    assert len(LINES) > 10


@needs("init")
def test_readme_init_runs_on_what_readme_installs(tmp_path):
    """With only the packages of README's line, `init` with a model server and documents ends with a valid file."""
    brought = installed_by(README)
    optional = {canonicalize_name(Requirement(text).name) for extra in EXTRAS.values() for text in extra}
    hidden = [name for name in DISTRIBUTIONS if packages_of(name) & (optional - brought - {PROJECT["name"]})]
    assert "elasticsearch" in hidden
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("# Mortgages\n\nA mortgage is a loan on a house.\n")
    with ScriptedServer({"": "Paris"}, models=[{"id": "llama-3b"}, {"id": "llama-70b"}]) as server:
        words = ["init", "--url", server.url, "--documents", "docs", "--yes"]
        code = re.sub(r"HIDDEN = .*", f"HIDDEN = {sorted(hidden)!r}", HIDE)
        code += f"from ragbandit.workers.cli import app\nimport sys\nsys.argv[1:] = {words!r}\napp()\n"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "config.yaml").is_file()
