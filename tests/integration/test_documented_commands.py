"""Every documented command is parsed by the real command line, and runs in a made world unless a reason is listed.

Every documented request of HTTP has an endpoint that takes it.
"""

import csv
import functools
import itertools
import json
import re
import shlex
import shutil
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer

from ragbandit.router.api.app import ENDPOINTS
from ragbandit.router.api.routes import RouteTable
from ragbandit.router.cli.lazy_verbs import LazyGroup, _Verb
from ragbandit.router.config import loading
from ragbandit.router.offline.logs import write_rows
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.shared.types import DecisionId, Query
from ragbandit.workers.cli import app
from tests.support import command
from tests.support.additions import is_offered
from tests.support.logs.log_rows import plain_rows, write_json
from tests.support.pages import names_without

from .test_base_install import ROOT

#: generated from the command line itself
GENERATED = {"docs/command.md"}
PAGES = [path for path in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
         if path.relative_to(ROOT).as_posix() not in GENERATED]  # fmt: skip
BLOCK = re.compile(r"^( *)```[^\n]*\n(.*?)^\1```|^((?:    [^\n]*\n|\n(?=    ))+)", re.DOTALL | re.MULTILINE)
#: a command at the beginning of a line, behind an environment, a prompt or another program that runs it
COMMAND = re.compile(
    r"(?:\$ |\w+=\S* +|(?:docker|kubectl|time) .*? |ExecStart=\S*/)*"
    r"(?:ragbandit|(?=export RAGBANDIT_)) *([a-z][\w-]*.*)"
)
#: the beginning of a command -> why it does not run here
NOT_RUN = {
    "demo": "takes minutes: `make demo` and the acceptance tests run it",
    "init": "looks for servers and asks: tests/additions/init/test_init_cli.py",
    "up": "starts processes: tests/acceptance",
    "answer": "asks a service: tests/acceptance",
    "feedback send --session": "asks a service: tests/integration/api/test_coding_agents.py",
    "route": "asks a service: tests/integration/api/test_command.py",
    **dict.fromkeys(
        (
            f"evaluate --table {name}"
            for name in (
                "test.jsonl",
                "table.jsonl",
                "id_test_results_long.csv",
                "routing/flan_t5_xl_dev.jsonl",
                "routing/llama31_8b_dev.jsonl",
            )
        ),
        "trains policies: tests/additions/evaluation/test_papers.py runs the commands with tiny models",
    ),
    "policy train": "trains a language model: tests/additions/classifiers",
    "policy restart single_step --label": "needs a service that begins the ledger: tests/integration/learning",
    "policy promote": "waits for evidence: tests/integration/cli/test_policy_cli.py",
    "policy rollback": "needs a promoted version: tests/integration/cli/test_policy_cli.py",
    "report --since 7d --decide": "asks arms: tests/integration/reporting/test_decide.py",
    "report --since 30d --against candidate": "needs an arm of its own: tests/integration/test_before_you_switch.py",
    "data reprice": "needs workers' answers with a wrong price: tests/integration/learning/test_repricing.py",
    "data export --before": "needs rows of three months: tests/integration/cli/test_export_import.py",
}
#: exit codes besides 0: verdicts of `advise`, and findings of `status`
CODES = {"advise": {0, 3, 4}, "status": {0, 1}}


@functools.cache
def commands(*, whole=False):
    """(page, words) for every command line in a block of a page, and every `export` of our variables, in order, without
    commands of missing additions. whole: whether to end a block at such a command, since later commands may need it.
    """
    found = []
    for page in PAGES:
        for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
            for line in (block[2] or block[3]).replace("\\\n", " ").splitlines():
                shown = COMMAND.match(line.strip())
                if shown is None:
                    continue
                if is_offered(shown[1]):
                    found.append((page.relative_to(ROOT).as_posix(), words_of(shown[1])))
                elif whole:
                    break
    return found


def words_of(line):
    """The words of a command, without the comment and without what its output is sent to."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&>")
    lexer.whitespace_split = True
    return list(itertools.takewhile(lambda word: word[0] not in "|;&>", lexer))


def in_text():
    """(file, words) for every command between backticks in a page."""
    for file in PAGES:
        for line in re.findall(r"`ragbandit ([a-z][^`\n]*)`", file.read_text(encoding="utf-8")):
            if is_offered(line):
                yield file.relative_to(ROOT).as_posix(), line.split()


@pytest.fixture
def parsed(monkeypatch):
    """A function: parse these words with the real command line, without running the verb."""
    monkeypatch.setattr(_Verb, "invoke", lambda *_: None)
    return lambda words: command.run(*words)


def test_every_command_in_a_block_is_parsed(parsed):
    """Verbs, options and arguments of all command lines in the blocks of all pages exist."""
    assert len(commands()) > 60
    shown = [(page, words) for page, words in commands() if words[0] != "export"]
    refused = {(page, " ".join(words)): done.output for page, words in shown if (done := parsed(words)).exit_code}
    assert refused == {}


def test_every_command_in_a_sentence_exists():
    """Verbs and options of all commands that pages name exist; values may be left out."""
    root, wrong = typer.main.get_command(app), []
    for file, words in in_text():
        group, verb, rest = root, words[0], words[1:]
        if verb not in group.verbs:
            wrong.append((file, words))
            continue
        found = group.load(verb)
        while isinstance(found, LazyGroup) and rest and rest[0] in found.verbs:
            found, rest = found.load(rest[0]), rest[1:]
        options = {name for one in getattr(found, "params", ()) for name in (*one.opts, *one.secondary_opts)}
        given = {word.partition("=")[0].rstrip(",;:.)") for word in rest if word.startswith("-")}
        if given - options - {"--help", "-c"}:
            wrong.append((file, words))
    assert wrong == []


#: configuration of the handbook's pages: three arms behind a scripted model
HANDBOOK = """
arms: {no_retrieval: {}, single_step: {}, multi_step: {}}
encoder: {model: hashing, dimension: 16}
generator: {name: scripted, script: {"": "So the answer is: Bram Stoker."}}
"""
#: configuration of all other pages, with two more arms that they name
CONFIG = HANDBOOK.replace("multi_step: {}", "multi_step: {}, fast: {class: no_retrieval}, deep: {class: multi_step}")
MODULE = """
arms = {"quick": lambda question: "Bram Stoker", "slow": lambda question: {"answer": "Jane Austen", "steps": 2}}
"""
QUESTIONS = [
    {"id": f"q{number}", "question": f"Who wrote book {number}?", "answers": ["Bram Stoker"]} for number in range(12)
]
#: pattern of a documented word -> its value in the made world
VALUES = {
    r"^/corpus\.jsonl$": "corpus.jsonl",
    r"^/(backups|etc/ragbandit)/": "",
    "^key:a1b2c3d4e5$": "tenant:default",  # a source that has sent feedback
}


def decide(config, *, ids):
    """Make a store with judged decisions of these ids, which its policy has learned. config: file of the settings."""
    with Router.open(loading.load(config).settings, jobs=MemoryJobs()) as router:
        for number, key in enumerate(ids):
            decision = router.route(Query(text=f"Who wrote book {number}?", id=DecisionId(key)))
            router.outcome(decision.id, answer="Bram Stoker", steps=number % 3)
            router.feedback(decision.id, rating=float(decision.arm in ("single_step", "deep")))
        router.learn()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the files that the pages name, two stores, and an index."""
    world = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(world)
        (world / "config.yaml").write_text(CONFIG)
        (world / "my_pipelines.py").write_text(MODULE)
        write_files(world)
        decide("config.yaml", ids=["ticket-4711", *(f"id-{number}" for number in range(12))])
        decide("examples/tutorial.yaml", ids=["first", *(f"id-{number}" for number in range(12))])
        command.run("index", "build", "--corpus", "corpus.jsonl", code=0)
        key = json.loads(command.run("keys", "create", "--name", "a", "--role", "app", "--json", code=0).stdout)
        (world / "key.txt").write_text(key["public_id"])
    return world


def write_files(world):
    handbook = world / "examples" / "handbook"
    handbook.mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "tutorial.yaml", handbook.parent)
    (handbook / "config.yaml").write_text(HANDBOOK)
    write_json(handbook / "questions.jsonl", QUESTIONS)
    write_json(world / "questions.jsonl", QUESTIONS)
    for corpus in (world, handbook):
        write_json(corpus / "corpus.jsonl", [{"id": "a", "title": "Dracula", "text": "Dracula is by Bram Stoker."}])
    with (ROOT / "examples" / "handbook" / "table.jsonl").open(encoding="utf-8") as lines:
        rows = list(map(json.loads, itertools.islice(lines, 20)))
    for table in (world / "table.jsonl", handbook / "table.jsonl", world / "routing" / "flan_t5_xl_dev.jsonl"):
        table.parent.mkdir(exist_ok=True)
        write_json(table, rows)
    with (world / "table.csv").open("w", newline="") as file:
        cells = [{"question": row["question"]} | {f"{kind}.{arm}": row[kind][arm] for kind in ("correct", "steps")
                 for arm in row[kind]} for row in rows]  # fmt: skip
        writer = csv.DictWriter(file, cells[0])
        writer.writeheader()
        writer.writerows(cells)
    answers = [f"{row['question']};{arm};{row['correct'][arm]};{row['steps'][arm] / 100};{row['steps'][arm]}"
               for row in rows for arm in row["correct"]]  # fmt: skip
    (world / "answers.csv").write_text("\n".join(["prompt;model;score;cost_usd;steps", *answers]))
    write_rows(world / "log.parquet", plain_rows(20))
    events = [{"EventId": f"e{number}", "_label_cost": -(number % 3 > 0), "a": [1 + number % 2, 2 - number % 2],
               "p": [0.5, 0.5], "c": {"_multi": [{"id": "fast"}, {"id": "deep"}]}} for number in range(40)]  # fmt: skip
    write_json(world / "events.dsjson", events)
    (world / "logs" / "2026-11").mkdir(parents=True)
    rows = pq.read_table(world / "log.parquet")
    pq.write_table(rows.append_column("challenger", rows["pmf"]), world / "logs" / "2026-11" / "rows.parquet")
    write_json(
        world / "ratings.jsonl",
        [{"metadata": {"decision_id": "ticket-4711"}, "score": 4, "user": {"id": "u"}, "id": "1"}],
    )
    (world / "scores.json").write_text(json.dumps([{"traceId": "ticket-4711", "value": 1, "id": "2"}]))
    write_json(world / "traces.jsonl", [{"metadata": {"decision_id": "ticket-4711"}, "scores": [{"value": 1}]}])
    (world / "export.json").write_text(
        json.dumps([{"question": row["question"], "expected": row["answers"]} for row in QUESTIONS])
    )


def reason_of(words):
    return next((reason for start, reason in NOT_RUN.items() if f"{' '.join(words)} ".startswith(f"{start} ")), None)


def runnable():
    pages, missing = defaultdict(list), names_without()
    for page, words in commands(whole=True):
        named = {name for word in words for name in word.split(",")}
        if page != "README.md" and reason_of(words) is None and not named & missing:
            pages[page].append(words)
    return dict(pages)


@pytest.mark.parametrize("page", runnable())
def test_the_commands_of_a_page_run_in_a_made_world(page, made, tmp_path, monkeypatch):
    """The commands of a page that need no service run one after the other, with exit code 0 or a verdict's."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    values = {**VALUES, "^ID$": Path("key.txt").read_text()}
    for words in runnable()[page]:
        if words[0] == "export":
            for pair in words[1:]:
                monkeypatch.setenv(*pair.split("=", 1))
            continue
        placed = [functools.reduce(lambda word, value: re.sub(*value, word), values.items(), word) for word in words]
        done = command.run(*placed)
        assert done.exit_code in CODES.get(words[0], {0}), (words, done.output)


def test_every_reason_is_needed():
    """Each reason not to run a command belongs to a documented command."""
    shown = [words for _, words in commands()]
    assert [
        start
        for start in filter(is_offered, NOT_RUN)
        if not any(words[: start.count(" ") + 1] == start.split() for words in shown)
    ] == []


#: (page, path) of a request to another service
OF_OTHERS = {("docs/logs.md", "/v1/chat/completions")}


def requests():
    """(page, method, path, body or None) for every curl line to a service, and every method and path in a sentence."""
    for page in PAGES:
        text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()
        for line in re.findall(r"curl (.*?)(?<!\\)\n", text, flags=re.DOTALL):
            url = re.search(r"(?:localhost|127\.0\.0\.1)(?::\d+)(/[\w/]+)", line)
            body = re.search(r"-d '(.*?)'", line, flags=re.DOTALL)
            if url is not None:
                yield name, "POST" if body else "GET", url[1], body and json.loads(body[1])
        for method, path in re.findall(r"`(GET|POST) (/v1/[\w/{}.-]+)[`?]", text):
            if (name, path) not in OF_OTHERS:
                yield name, method, path, None


def test_every_documented_request_is_served():
    """Each documented method and path has an endpoint, and each body of a curl line is one that it takes."""
    table, found = RouteTable(ENDPOINTS), list(requests())
    assert len(found) > 20
    for page, method, path, body in found:
        endpoint, _ = table.find(method, path)
        assert endpoint is not None, (page, method, path)
        if body is not None:
            _, errors = endpoint.body_field.validate(body, loc=())
            assert not errors, (page, path, errors)


def test_every_curl_line_can_be_pasted():
    """Each curl line names the whole address, and says that its body is JSON, without which the service refuses it."""
    for page in PAGES:
        for line in re.findall(r"curl (.*?)(?<!\\)\n", page.read_text(encoding="utf-8"), flags=re.DOTALL):
            assert re.search(r"(?:localhost|127\.0\.0\.1):\d+/\w", line), (page.name, line)
            assert " -d " not in line or re.search("content-type: application/json", line), (page.name, line)
