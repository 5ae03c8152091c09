"""Every command that a message, a page or a verb can print runs as it is printed, or says what is missing.

A command in a message stands between backticks; words in capitals are for the reader to fill in. The commands are
collected from the sources, and from the output of verbs and pages in five kinds of installations.
"""

import ast
import functools
import html
import re
import shlex
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from ragbandit.router.api.app import create_app
from ragbandit.router.cli.lazy_verbs import _Verb
from ragbandit.router.config import loading
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.serving.router import Router
from ragbandit.shared.additions import additions
from ragbandit.shared.types import Query
from ragbandit.workers.cli import VERBS
from tests.support import command
from tests.support.additions import is_offered, needs
from tests.support.logs.log_rows import write_json

from .test_base_install import ROOT
from .test_documented_commands import MODULE, QUESTIONS, made  # noqa: F401 - the fixture of a made world

FOLDERS = ("router", "workers", "strategies", "ragbandit", "migrations")
COMMAND = re.compile(r"`ragbandit ([a-z][^`]*)`")
#: a command outside of backticks
BARE = re.compile(rf"(?<![`\w/.])ragbandit ({'|'.join(VERBS)})\b(?![^`\n]*`)")
#: names of processes in messages, such as "ragbandit up holds the store"
PROCESSES = {"ragbandit up", "ragbandit serve", "ragbandit migrate --from"}
#: word in capitals, or expression of a message -> its value in the made world
FILLED = {
    "MODULE:NAME": "my_pipelines:arms",
    "{module}": "my_pipelines:arms",
    "QUESTIONS.jsonl": "questions.jsonl",
    "CORPUS.jsonl": "corpus.jsonl",
    "T.jsonl": "table.jsonl",
    "FOLDER": "trained",
    "FILE": "written.jsonl",
    "INDEX": "index",
    "{index}": "index",
    "{retriever}": "bm25",
    "NAME": "v9",
    "DIR": "examples",
    "SQLITE_URL": "sqlite:///old.db",
    "ARM": "single_step",
    "POLICY": "popularity",
    "QUESTION": "Who wrote Dracula?",
    "{name}": "v1",
    "{since}": "2026-11-20T10:00:00",
    "{tenant}": "",
    "{seen.name}": "v1",
    "{version.name}": "v1",
    "{ledger.label}": "main",
    "{champion.label}": "main",
    "{label}": "main",
    "{new}": "second",
    "{queue}": "learn",
    "{decision.id}": "ticket-4711",
    "{shlex.quote(str(out))}": "questions.jsonl",
    # options that repeat those of the command that prints
    "{given}": "",
    "{where}": "",
    "{used}": "",
    "{options}": "",
    "{source}": "",
    "{functions}": "",
    "{reply['decision_id']}": "ticket-4711",
    "{decision.id | urlencode}": "ticket-4711",
    "{policy.algorithm}": "popularity",
    "{CHOOSES_ARM}": "forced",
}
#: (verb, word in capitals) -> value for this verb only
OF_VERB = {("feedback import", "FILE"): "judged.jsonl", ("keys create", "NAME"): "ann", ("policy retire", "NAME"): "v9"}
#: the beginning of a command -> why it does not run here
NOT_RUN = {
    "up": "starts processes: tests/acceptance",
    "serve": "starts a service: tests/integration/cli/test_serve.py",
    "worker": "starts a process: tests/acceptance",
    "init": "looks for servers: tests/additions/init/test_init_cli.py",
    "answer": "asks a service: tests/acceptance",
    "route": "asks a service: tests/integration/api/test_command.py",
    "feedback send": "asks a service: tests/integration/api/test_coding_agents.py",
    "migrate --from": "needs PostgreSQL: tests/integration/cli/test_move.py",
    "policy train": "trains a language model: tests/integration/policies",
    "policy rollback": "needs a promoted version: tests/integration/cli/test_policy_cli.py",
    "index build --retriever elasticsearch": "needs its server: tests/additions/elasticsearch",
    "data reprice": "needs answers with a wrong price: tests/integration/learning/test_repricing.py",
    "evaluate --questions": "asks models: tests/additions/evaluation/test_evaluate_cli.py",
}
CODES = {"advise": {0, 3, 4}, "status": {0, 1}}


Function = ast.FunctionDef | ast.AsyncFunctionDef


def texts_of(path):
    """(line, text) of all texts of a source, with {EXPRESSION} for a value; of docstrings only the help of verbs."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
    for node in ast.walk(tree):
        body = getattr(node, "body", None) if isinstance(node, ast.Module | ast.ClassDef | Function) else None
        for each in body or ():
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                is_help = isinstance(node, Function) and "typer.Option" in ast.unparse(node.args)
                parts |= set() if is_help else {id(each.value)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(
                    part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"  # type: ignore[union-attr]
                    for part in node.values
                ),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, node.value


def files(pattern):
    """Files of the product, each once: in the package, links lead to the other folders."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob(pattern)):
            if not (folder == "ragbandit" and path.parts[len(ROOT.parts) + 1] in FOLDERS):
                yield path


@functools.cache
def sources():
    """(place, text) of everything with a command that the product can print."""
    found = []
    for path in files("*.py"):
        if re.search(r"ragbandit [a-z{]", path.read_text(encoding="utf-8")):
            found += [(f"{path.relative_to(ROOT)}:{line}", text) for line, text in texts_of(path)]
    for path in files("*.html"):
        text = re.sub(r"<code>(.*?)</code>", r"`\1`", path.read_text(encoding="utf-8"))
        found.append((str(path.relative_to(ROOT)), re.sub(r"\{\{ (.*?) \}\}", r"{\1}", html.unescape(text))))
    return found


def commands_in(text):
    """The commands between backticks, without those of additions that this tree lacks."""
    return [found[1] for found in COMMAND.finditer(text) if is_offered(found[1])]


def filled(line):
    """The words of a command as a user would type it. Raises KeyError for a word or expression that is not known."""
    line = re.sub(r"\{(?:[^{}]|\{[^{}]*\})*\}", lambda found: FILLED[found[0]], line)
    verb = " ".join(line.split()[:2])
    is_name = re.compile(r"[A-Z][A-Z_:]*(\.jsonl)?").fullmatch
    return [OF_VERB.get((verb, word), FILLED[word]) if is_name(word) else word for word in shlex.split(line)]


def faults_of(lines, *, not_run=NOT_RUN):
    """Command -> what went wrong, for those that a user cannot run. not_run: beginnings of those to be parsed only."""
    faults = {}
    for line in dict.fromkeys(lines):
        try:
            words = filled(line)
        except (KeyError, ValueError) as error:
            faults[line] = f"not filled: {error!r}"
            continue
        runs = not any(f"{' '.join(words)} ".startswith(f"{start} ") for start in not_run) and "--help" not in words
        with pytest.MonkeyPatch.context() as patch:
            if not runs:
                patch.setattr(_Verb, "invoke", lambda *_: None)
            done = command.run(*words, input="y\n")
        if done.exit_code not in (CODES.get(words[0], {0}) if runs else {0}):
            faults[line] = " ".join(done.output.split())[-300:]
    return faults


def test_a_command_in_a_message_is_marked():
    """Every command in a message stands between backticks, so that it can be found, tested and copied."""
    bare = {place: text for place, text in sources() if BARE.search(text) and text not in PROCESSES}
    assert bare == {}


def test_commands_of_messages_run(made, tmp_path, monkeypatch):  # noqa: F811 - a fixture
    """The commands of all messages and pages run in a made world, with their words in capitals filled in."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for name in ("v1", "v9"):
        command.run("policy", "add", name, "--set=policy.name=linucb", code=0)
    command.run("policy", "kill", "single_step", code=0)
    write_json(tmp_path / "judged.jsonl", [{"decision_id": "ticket-4711", "rating": 1}])
    lines = [line for _, text in sources() for line in commands_in(text) if is_offered(line)]
    assert len({*lines}) > 40
    assert faults_of(lines) == {}


@needs("dashboard")
def test_every_reason_is_needed():
    """Each reason not to run a command belongs to a command of a message."""
    lines = {line for _, text in sources() for line in commands_in(text)}
    unused = {
        start for start in filter(is_offered, NOT_RUN) if not any(f"{line} ".startswith(f"{start} ") for line in lines)
    }
    assert unused == set()


BASE = "data_dir: data\nencoder: {model: hashing, dimension: 16}\npolicy: {name: uniform}\n"
WORKERS = 'arms: {no_retrieval: {}, direct: {class: no_retrieval}}\ngenerator: {name: scripted, script: {"": "x"}}\n'
OPENAI = "{name: openai, model: m, openai: {base_url: http://127.0.0.1:9/v1, api_key_env: NONE}}"
MODELS = "arms: {small: {class: model}, large: {class: model}}\n"
FUNCTIONS = "arms: {quick: {run_by: caller}, slow: {run_by: caller}}\n"
#: name -> (configuration, questions, rated ones)
WORLDS = {
    "own functions": (f"{BASE}{FUNCTIONS}", 30, 10),
    "one arm answers": (
        f"{BASE.replace('uniform', 'mba, incumbent: slow')}{FUNCTIONS}",
        20,
        10,
    ),
    "gateway": (
        f"{BASE}{MODELS}generator: {OPENAI}\njudge: {{generator: {OPENAI}}}\n",
        30,
        10,
    ),
    "no judge": (f"{BASE}{WORKERS}", 30, 10),
    "no labels": (f'{BASE}{WORKERS}judge: {{generator: {{name: scripted, script: {{"": "x"}}}}}}\n', 30, 0),
    "fresh": (f"{BASE}{WORKERS}", 0, 0),
}
ASKED = (
    ["report"],
    ["report", "--all", "--since", "30d"],
    ["status"],
    ["advise"],
    ["replay"],
    ["verify"],
    ["policy", "show"],
    ["keys", "list"],
    ["data", "questions", "log.jsonl", "-o", "questions.jsonl"],
    ["evaluate", "--policy", "linucb"],
    ["explain", "nobody"],
)
PAGES = ("/ui", "/ui/arms", "/ui/decisions", "/ui/policies", "/ui/feedback", "/ui/labels", "/ui/queues")
PAGES = PAGES if "dashboard" in additions() else ()


@pytest.fixture(params=WORLDS)
def world(request, tmp_path, monkeypatch):
    """An installation in the working directory, and everything that its verbs and pages print."""
    config, questions, rated = WORLDS[request.param]
    monkeypatch.chdir(tmp_path)
    for file in ("config.yaml", "other.yaml"):
        (tmp_path / file).write_text(config)
    (tmp_path / "my_pipelines.py").write_text(MODULE)
    write_json(tmp_path / "log.jsonl", QUESTIONS)
    write_json(tmp_path / "questions.jsonl", QUESTIONS)
    pages = list(live(questions=questions, rated=rated)) if questions else []
    printed = [
        line
        for words in ASKED
        if is_offered(" ".join(words))
        for line in command.run(*words, "--config", "other.yaml").output.splitlines()
    ]
    return SimpleNamespace(name=request.param, pages=pages, printed=printed)


def live(*, questions, rated):
    """Serve questions, and yield the texts of the pages."""
    app = create_app(lambda: Router.open(loading.load("other.yaml").settings, jobs=MemoryJobs()))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        router = app.state.router
        by = "worker" if router.settings.worker_arms else "caller"
        for number in range(questions):
            decision = router.submit(Query(text=f"Who wrote book {number}?"), run_by=by).result(30)
            done = {"decision_id": decision.id, "now": decision.made_at, "status": "answered", "answer": "x"}
            outcome = make_outcome(**done, steps=float(decision.arm in ("slow", "large", "direct")))
            router.store.add_outcome(replace(outcome, run_by=by))
            if number < rated:
                router.feedback(decision.id, rating=number % 2 == 0)
        router.learn()
        for path in PAGES:
            yield re.sub(r"<code>(.*?)</code>", r"`\1`", html.unescape(client.get(path).text))


def test_commands_that_are_printed_run(world):
    """What verbs and pages print in an installation runs there, with its configuration; where no verdict can be bought,
    a line says why.
    """
    name, texts = world.name, "\n".join([*world.pages, *world.printed])
    # A command behind "then:" runs when the line before it was followed.
    printed = [line for text in world.printed if not text.startswith("- then:") for line in commands_in(text)]
    assert all("--config other.yaml" in line for line in printed if "--help" not in line)
    asks_models = ["advise questions.jsonl"] if name == "gateway" else []
    found = [*printed, *commands_in("\n".join(world.pages))]
    assert faults_of(found, not_run=[*NOT_RUN, *asks_models]) == {}
    assert ("a verdict cannot be bought yet: every question" in texts) == (name == "one arm answers")
    assert ("--decide" in texts) == (name not in ("one arm answers", "fresh"))
    assert ("--module MODULE:NAME" in texts and "--judge labels" in texts) == (name == "own functions")


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("reprot", "no command"),
        ("report --deside", "No such option"),
        ("report --decide", "nothing scores the answers"),
        ("report --decide --judge labels", "cannot be run here"),
        ("report --against {nobody}", "not filled"),
    ],
)
def test_a_planted_command_is_found(line, fault, tmp_path, monkeypatch):
    """An unknown verb or option, a missing need and an unknown word are found."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(WORLDS["own functions"][0])
    (tmp_path / "other.yaml").write_text(WORLDS["own functions"][0])
    (tmp_path / "my_pipelines.py").write_text(MODULE)
    list(live(questions=20, rated=4))
    assert fault in faults_of(commands_in(f"to go on: `ragbandit {line}`"))[line]
