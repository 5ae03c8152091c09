"""The router's verbs refuse a wrong configuration with one line and exit code 2."""

import importlib.metadata
import importlib.util
import io
import json
import re
import socket
import time

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.service_process import free_port
from ragbandit.router.cli import progress as progress_module
from ragbandit.shared.additions import additions
from ragbandit.strategies.base import Passage
from ragbandit.strategies.retrievers.bm25 import build_index
from ragbandit.workers.cli import app, spin_count
from tests.support.additions import needs
from tests.support.cases import every_case


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a verb with a config file's text."""
    monkeypatch.chdir(tmp_path)

    def call(text, *words, bare=False, generates=True):
        head = "" if bare else "encoder: {model: hashing}\n"
        if generates and "generator" not in text and "local_models" not in additions():
            head += "generator: {name: scripted}\n"
        (tmp_path / "config.yaml").write_text(f"{head}{text}\n")
        return CliRunner().invoke(app, words)

    return call


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_progress(monkeypatch, terminal):
    """A step shows its counts and unit, as a bar at a terminal, else in lines that come although nothing is reported.

    Between two steps, and during one that cannot count, its name is the sign of life.
    """
    monkeypatch.setattr(progress_module, "LINE_S", 0.01)
    shown = io.StringIO()
    with progress_module.show_progress(Console(file=shown, force_terminal=terminal, width=100)) as progress:
        for step, expected in (
            (("rows", 1000, 3000), "1,000 of 3,000"),
            (("rows", 3000, 3000), "working"),
            (("learning", 0, 0), "learning"),
            (("lines", 2000, 0), "2,000"),
        ):
            shown.truncate(0)
            progress(*step)
            give_up = time.monotonic() + 20
            while expected not in shown.getvalue():
                assert time.monotonic() < give_up, shown.getvalue()
                time.sleep(0.01)
    assert ("\x1b" in shown.getvalue()) == terminal


def test_version(run):
    """`ragbandit --version` prints the installed version and exits 0, without a verb."""
    done = run("", "--version")
    assert done.exit_code == 0
    assert done.output == f"ragbandit {importlib.metadata.version('ragbandit')}\n"


@pytest.mark.parametrize("verb", ["validate", "serve"])
@pytest.mark.parametrize(
    ("text", "named"), [("policy: {name: oracle}", "policy.name"), ("policy: {floor: 0.9}", "policy.floor")]
)
def test_policy_that_cannot_decide_ends_the_command(run, tmp_path, verb, text, named):
    """`validate` and `serve` end with exit code 2 and the setting's key, before anything is opened."""
    done = run(text, verb)
    assert done.exit_code == 2
    assert named in done.output
    assert not (tmp_path / ".ragbandit").exists()


@pytest.fixture
def whole(run, tmp_path, monkeypatch):
    """Runs a verb of the whole command, on a folder that has an index; arms and a generator are known there."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    build_index([Passage(id="a", title="A", text="Some text.")], tmp_path / ".ragbandit" / "indexes" / "default")
    return run


@pytest.mark.parametrize("verb", ["validate", "up"])
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("generator: {name: openai, model: m}", "generator.openai.api_key_env: OpenAI needs a key"),
        ("generator: {name: openai, model: m, openai: {base_url: '127.0.0.1:9/v1'}}", "generator.openai.base_url: "),
        pytest.param(
            "generator: {model: ./nowhere}",
            "generator.model: no file or folder './nowhere'",
            marks=needs("local_models"),
        ),
        pytest.param(
            "generator: {model: no/such-model}",
            "generator.model: found no weights for 'no/such-model'",
            marks=needs("local_models"),
        ),
    ],
)
def test_generator_that_no_worker_could_make_ends_the_command(whole, tmp_path, verb, text, named):
    """`validate` and `up` end with exit code 2 and what a worker would have said; nothing is started."""
    done = whole(text, verb)
    assert done.exit_code == 2
    assert named in done.output
    assert [file.name for file in (tmp_path / ".ragbandit").iterdir()] == ["indexes"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('retriever: {name: "no_such_module:make"}', "retriever.name: 'no_such_module:make' cannot be imported"),
        ('retriever: {name: "json:make"}', "retriever.name: 'json:make' cannot be imported"),
        pytest.param(
            'retriever: {name: hybrid, second: "no_such_module:make"}',
            "retriever.second: 'no_such_module:make'",
            marks=needs("hybrid"),
        ),
        (
            'retrievers: {w: {name: "no_such_module:make"}}\narms: {a: {class: single_step, retriever: w}}',
            "retrievers.w.name: 'no_such_module:make' cannot be imported",
        ),
    ],
)
def test_an_own_retriever_that_cannot_be_imported_is_refused(run, text, named):
    """`validate` imports the functions that make your retrievers, of every section that an arm uses."""
    done = run(f'generator: {{name: scripted, script: {{"": "x"}}}}\n{text}', "validate", "--settings-only")
    assert done.exit_code == 2
    assert named in done.output


def test_validate_prints_every_setting(run):
    """`validate --json` prints every setting with its value and where it came from."""
    done = run("policy: {name: fixed, params: {arm: multi_step}}", "validate", "--json")
    assert done.exit_code == 0, done.output
    rows = {row["key"]: row for row in json.loads(done.output)}
    assert rows["policy.name"] == {"key": "policy.name", "value": "fixed", "source": "file config.yaml"}
    assert rows["learning.batch"]["source"] == "default"


def test_validate_prints_what_was_changed(run, monkeypatch):
    """`validate` prints the settings that are not the default, from file and environment, without cutting."""
    monkeypatch.setenv("RAGBANDIT_ARMS", "{fast: {run_by: caller}}")
    url = "postgresql+psycopg://somebody@a-rather-long-host-name.example.com:5432/a_database_with_a_rather_long_name"
    done = run(f"database_url: {url}", "validate", "--settings-only", generates=False)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[:3] == [
        f'database_url: "{url}" (file config.yaml)',
        'arms.fast.run_by: "caller" (environment RAGBANDIT_ARMS)',
        'encoder.model: "hashing" (file config.yaml)',
    ]
    assert re.fullmatch(r"ok: 3 of \d+ settings are not the default .*; tried: nothing", lines[-1])
    assert len(run("", "validate", "--all").output.splitlines()) > 100


def test_validate_warns_of_arms_that_nothing_runs(run):
    """`validate` warns if `up` starts no worker, unless the service itself runs every arm."""
    by_server = "arms: {a: {class: model}, b: {class: model}}\ngenerator: {name: openai, model: m}\n"
    warned = {
        text: "workers.answer: 0" in run(text + "workers: {answer: 0}", "validate", "--settings-only").output
        for text in ("", by_server)
    }
    assert warned == {"": True, by_server: False}


def test_validate_tries_what_it_can(run, tmp_path):
    """Folder, port, Redis, database, model server: what does not work is named, and the last line counts; exit 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken, every_case() as case:
        port = taken.getsockname()[1]
        (tmp_path / "broken.db").write_bytes(b"no database, and long enough to be read as one" * 50)
        for text, field, words in (
            ("data_dir: /proc/none", "data_dir", "/proc/none cannot be made"),
            (f"server: {{port: {port}}}", "server.port", "Address already in use"),
            ("server: {port: 8100, host: '2001:db8::1'}", "server.port", "2001:db8::1:8100 cannot be used"),
            (f"redis_url: redis://127.0.0.1:{free_port()}/0", "Redis", "not reachable"),
            ("database_url: sqlite:///broken.db", "database", "the database failed"),
            (
                f"generator: {{name: openai, model: m, openai: {{base_url: 'http://127.0.0.1:{free_port()}/v1'}}}}",
                "generator.openai.base_url",
                "Connection refused",
            ),
        ):
            with case(text):
                done = run(
                    f"server: {{port: {free_port()}}}\n{text}" if "port: " not in text[:16] else text, "validate"
                )
                assert done.exit_code == 1, done.output
                *_, named, last = done.output.splitlines()
                assert named.startswith(f"problem {field}: ")
                assert words in named
                assert last == "1 problem"
        with case("all is well"):
            done = run(f"server: {{port: {free_port()}}}", "validate")
            assert done.exit_code == 0
            assert done.output.splitlines()[-1].endswith("tried: data_dir, server.port")
            assert sorted(each.name for each in tmp_path.iterdir()) == ["broken.db", "config.yaml"]


def test_validate_tries_a_model_server_as_it_is_asked(run, monkeypatch):
    """A server behind a proxy is tried through it, though its name is not known here; a wrong variable is named."""
    far = "generator: {name: openai, model: m, openai: {base_url: 'https://model.invalid/v1'}}\nserver: {port: 0}"
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        for name, value, words in (
            ("HTTPS_PROXY", f"http://127.0.0.1:{proxy.getsockname()[1]}", "tried: data_dir, server.port, generator"),
            ("HTTPS_PROXY", f"http://127.0.0.1:{free_port()}", "Connection refused"),
            ("HTTPS_PROXY", "http://proxy.example:port", "HTTPS_PROXY is not the URL of a proxy"),
            ("SSL_CERT_FILE", "/missing.pem", "/missing.pem (SSL_CERT_FILE) cannot be read: No such file"),
        ):
            with monkeypatch.context() as patch:
                patch.setenv(name, value)
                assert words in run(far, "validate").output


@pytest.mark.parametrize(
    ("text", "package", "extra"),
    [
        ("encoder: {model: distilbert/distilbert-base-uncased}", "torch", "models"),
        ("database_url: postgresql+psycopg://localhost/x", "psycopg", "postgres"),
        ("generator: {name: openai, model: m}", "openai", "openai"),
        pytest.param("generator: {name: local}", "torch", "models", marks=needs("local_models")),
    ],
)
def test_validate_names_the_missing_package(whole, monkeypatch, text, package, extra):
    """Where encoder, database or generator miss a package, `validate` exits 2 with the package and the extra."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == package else found(name, *more)
    )
    done = whole(text, "validate", bare=text.startswith("encoder"))
    assert done.exit_code == 2
    assert f"the package {package} is missing (pip install '.[{extra}]' in a clone of the repository" in done.output


@pytest.mark.parametrize(("cores", "spins"), [(1, "0"), (2, "0"), (3, "1000"), (64, "1000")])
def test_idle_threads_of_torch_spin_only_where_cores_are_left(cores, spins):
    """On one or two cores, threads of torch that wait sleep at once; with more, they look for work for a short time."""
    assert spin_count(cores=cores) == spins
