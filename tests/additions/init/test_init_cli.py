"""Verb `init`, as a user types it: in an empty folder, with a model server, with documents and pipelines."""

import os
import subprocess
import sys

import pytest
import yaml
from rich.prompt import InvalidResponse

from ragbandit.additions.init import model_lists as servers
from ragbandit.additions.init.command import _PricePrompt
from ragbandit.additions.init.draft import choose_models
from ragbandit.additions.init.model_lists import ModelCatalog, ModelDescription
from ragbandit.router.config.loading import load
from ragbandit.shared.additions import additions
from ragbandit.shared.errors import ConfigError
from ragbandit.testing.openai_server import ScriptedServer
from tests.support import command
from tests.support.additions import needs, task_units
from tests.support.cases import every_case

PIPELINES = """
class Chain:
    async def ainvoke(self, given, config=None):
        return "an answer"

class Engine:
    def query(self, question):
        return "an answer"

quick, thorough, neither = Chain(), Engine, 5

def engine():
    return Engine()
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that runs `init` in an empty folder of a machine without servers: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(servers, "USUAL_PORTS", {})
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def typed(*words, verb="init"):
        done = command.run(verb, *words)
        return done.exit_code, done.stdout, done.stderr

    return typed


def written(run, *words):
    """The tree of the file that `init` wrote with these words, which `validate` accepts; and what it printed."""
    code, out, err = run(*words)
    assert code == 0, err
    assert run("--settings-only", verb="validate")[0] == 0
    with open("config.yaml", encoding="utf-8") as file:
        return yaml.safe_load(file), out


def documents(folder, name="docs"):
    (folder / name).mkdir()
    (folder / name / "city.md").write_text("# Warsaw\n\nIt stands by the Vistula.", encoding="utf-8")


def test_without_a_server_the_local_model_answers(run, tmp_path):
    """In an empty folder the user's code runs the arms, since one arm is nothing to route; documents add arms.

    Without a terminal and --yes nothing is written. An existing file stays as it is without --force.
    """
    code, _, err = run()
    assert (code, list(tmp_path.glob("*config*"))) == (2, [])
    assert "--yes" in err
    assert "economy (5 steps)" in err
    tree, out = written(run, "--yes")
    assert tree["arms"] == {"fast": {"run_by": "caller"}, "deep": {"run_by": "caller"}}
    assert "nothing to route" in out
    assert "Missing: documents (--documents DIR), a model server (--url)" in out
    before = (tmp_path / "config.yaml").read_bytes()
    code, _, err = run("--yes")
    assert (code, (tmp_path / "config.yaml").read_bytes()) == (2, before)
    assert "--force" in err
    documents(tmp_path)
    tree, out = written(run, "--prefer", "quality", "--force")
    assert list(tree["arms"]) == ["no_retrieval", "single_step", "multi_step"]
    held = {"arm": "single_step", "share": 0.1, "until": 200, "then": 0.02}
    assert tree["policy"] == {"incumbent": "single_step", "harm": 0.05, "holdback": held}
    assert "# harm: share of the incumbent's reward" in (tmp_path / "config.yaml").read_text(encoding="utf-8")
    assert len(out.splitlines()) == 6
    assert max(map(len, out.splitlines()[:5])) < 140
    assert (tree["reward"]["weight"], tree["cost_weights"]["quality"]) == (0.01, 0.01)
    assert "1 passage of docs" in out
    assert run("--yes", "--force")[1].count("the index default has 1 passage (bm25)") == 1  # not built again


def test_one_question_on_a_terminal(run, tmp_path):
    """On a terminal one question is asked, and its answer is the price."""
    theirs, ours = os.openpty()
    code = "from ragbandit.additions.init import model_lists; from ragbandit.workers.cli import main; "
    code += "model_lists.USUAL_PORTS = {}; main()"
    command = [sys.executable, "-c", code, "init"]
    with subprocess.Popen(command, stdin=ours, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as init:
        os.write(theirs, b"economy\n")
        out, err = init.communicate(timeout=60)
    assert init.returncode == 0, err
    question = "What is a right answer worth (a step is one round of search and generation)?"
    assert out.count(question) == 1
    assert out.index("stand for your own pipelines") < out.index(question) < out.index("economy: a right answer is")
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["reward"]["weight"] == 0.2
    os.close(theirs)
    os.close(ours)


def test_a_missing_package_ends_it_before_the_index(run, tmp_path, monkeypatch):
    """Without the package of the model server `init` ends with its name before it makes an index or asks a question."""
    documents(tmp_path)
    monkeypatch.setitem(sys.modules, "openai", None)
    with ScriptedServer({"": "So."}, models=[{"id": "qwen2.5-7b"}]) as server:
        code, out, err = run("--url", server.url, "--prefer", "balanced")
    assert (code, out) == (2, "")
    assert "the package openai is missing" in err
    assert [path.name for path in tmp_path.iterdir()] == ["docs"]


def test_a_model_of_a_server(run, tmp_path, monkeypatch):
    """One model of a named server: its address, its context and the variable of its key are written, the key is not."""
    monkeypatch.setenv("OWN_KEY", "sk-proj-very-secret-4711")
    documents(tmp_path, "manuals")
    models = [{"id": "qwen2.5-7b", "max_model_len": 16384}, {"id": "bge-embed-large"}]
    with ScriptedServer({"": "So."}, models=models) as server:
        address = server.url.removesuffix("/v1")
        tree, _ = written(run, "--yes", "--url", address, "--key-env", "OWN_KEY", "--documents", "manuals")
        descriptions = ["/v1/model/info", "/api/show", "/api/v0/models"]
        assert [request.path for request in server.requests] == ["/v1/models", *descriptions]  # nothing costs money
        assert server.requests[0].headers["authorization"] == "Bearer sk-proj-very-secret-4711"
        assert tree["generator"]["openai"] == {"base_url": server.url, "bytes_per_token": 3.0, "api_key_env": "OWN_KEY"}
        if "embeddings" in additions():
            assert tree["embeddings"] == {"base_url": server.url, "api_key_env": "OWN_KEY"}
    assert (tree["generator"]["model"], tree["generator"]["context_tokens"]) == ("qwen2.5-7b", 16384)
    assert (tree["arms_preset"], list(tree["arms"])) == ("chat", ["no_retrieval", "single_step", "multi_step"])
    text = (tmp_path / "config.yaml").read_text(encoding="utf-8")
    assert "secret" not in text.lower().replace("secrets belong", "")
    assert "# " in text
    assert "token_prices: {input: ..., output: ...}" in " ".join(text.split())


def test_what_models_read_is_written(run, tmp_path):
    """Abilities of the server's list are written; if it has none, a commented line and a sentence say what to add."""
    vision = {"capabilities": ["completion", "multimodal"]}
    for models, images in (
        ([{"id": "a-3b"}, {"id": "b-70b", **vision}], "images go to b-70b: the server does not describe a-3b"),
        ([{"id": "a-3b", **vision}, {"id": "b-70b", **vision}], "images go to a-3b and b-70b, as the server describes"),
        ([{"id": "a-3b"}, {"id": "b-70b"}], "requests with images are refused: the server does not describe"),
    ):
        with ScriptedServer({"": "So."}, models=models) as server:
            tree, out = written(run, "--yes", "--force", "--url", server.url)
        assert images in out
        assert "/v1/embeddings" not in out
        assert "embeddings" not in tree
        text = (tmp_path / "config.yaml").read_text()
        assert ("# supports: [tools, json, images]" in text) == ("does not describe" in images)
        supports = {each["model"]: each.get("supports") for each in tree["generators"].values()}
        shown = {model["id"]: ["images", "json", "tools"] if "capabilities" in model else None for model in models}
        assert supports == shown


@needs("embeddings")
def test_embeddings_of_the_server_are_passed_on(run):
    """If the server lists models for embeddings, requests for embeddings go to it, at its prices if all have one."""
    free = {"prompt": "1e-6", "completion": "0"}
    with ScriptedServer(
        {"": "So."}, models=[{"id": "m"}, {"id": "bge-m3"}, {"id": "x-embed", "pricing": free}]
    ) as server:
        tree, out = written(run, "--yes", "--url", server.url)
        assert tree["embeddings"] == {"base_url": server.url}
        assert "/v1/embeddings passes requests on to the same server, which has bge-m3, x-embed" in out
    with ScriptedServer({"": "So."}, models=[{"id": "m"}, {"id": "x-embed", "pricing": free}]) as server:
        tree, _ = written(run, "--yes", "--force", "--url", server.url)
    assert tree["embeddings"]["token_prices"] == {"x-embed": [1.0, 0.0]}


def test_two_models_of_a_server_on_a_usual_port(run, tmp_path, monkeypatch):
    """Arms of both models by names, an index of the documents, an incumbent; no price is made up, no key sent."""
    documents(tmp_path)
    with ScriptedServer(
        {"": "So."}, models=[{"id": name} for name in ("qwen3:32b", "llama3.2:3b", "nomic-embed-text")]
    ) as server:
        monkeypatch.setattr(servers, "USUAL_PORTS", {"Ollama": int(server.url.split(":")[2].partition("/")[0])})
        tree, out = written(run, "--yes")
        assert "authorization" not in server.requests[0].headers
        assert {name: each["model"] for name, each in tree["generators"].items()} == {
            "small": "llama3.2:3b",
            "large": "qwen3:32b",
        }
        assert tree["generators"]["large"]["openai"]["base_url"] == server.url
    assert "small is llama3.2:3b, large is qwen3:32b (the smallest and the largest by name" in out
    assert tree["arms"] == {
        "no_retrieval_small": {"class": "no_retrieval", "generator": "small"},
        "single_step_small": {"class": "single_step", "generator": "small"},
        "single_step_large": {"class": "single_step", "generator": "large"},
        "multi_step_large": {"class": "multi_step", "generator": "large"},
    }
    assert tree["policy"]["incumbent"] == "single_step_large"
    assert not {"token_prices", "context_tokens"} & tree["generators"]["small"].keys()
    assert tree["reward"]["cost"] == {"steps": 1.0}


def test_a_server_that_was_named_must_answer(run, monkeypatch):
    """Invalid values of --url, OPENAI_BASE_URL and --model are refused by name, and nothing is written."""
    with ScriptedServer({"": "So."}, models=[{"id": "llama-3b"}, {"id": "llama-70b"}]) as server, every_case() as case:
        for words, environ, parts in (
            (["--url", "http://127.0.0.1:9/v1"], {}, ["--url", "ConnectError"]),
            ([], {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}, ["OPENAI_BASE_URL", "ConnectError"]),
            (["--url", "http://me:pass1234@127.0.0.1:9/v1"], {}, ["--url", "--key-env"]),
            (["--url", server.url, "--model", "llama-71b"], {}, ["did you mean llama-70b?"]),
            (["--model", "llama-70b"], {}, ["--url"]),
            (["--url", f"{server.url}/chat/v1"], {}, ["status 404"]),
            (["--documents", "nowhere"], {}, ["--documents", "nowhere"]),
            (["--prefer", "cheap"], {}, ["economy, balanced, quality"]),
        ):
            with case(*words), monkeypatch.context() as patched:
                for name, value in environ.items():
                    patched.setenv(name, value)
                code, _, err = run("--yes", *words)
                assert code == 2
                assert "pass1234" not in err
                assert [part for part in parts if part not in err] == []
                assert not os.path.exists("config.yaml")


def test_pipelines_are_arms(run, tmp_path):
    """Two pipelines are the arms, whatever else is here; one joins the model's. Seconds are charged."""
    (tmp_path / "my_rag_of_init.py").write_text(PIPELINES, encoding="utf-8")
    given = ["--pipeline", "quick=my_rag_of_init:quick", "--pipeline", "deep=my_rag_of_init:engine"]
    tree, _ = written(run, "--yes", *given)
    assert tree["arms"] == {
        "quick": {"class": "callable", "object": "my_rag_of_init:quick"},
        "deep": {"class": "callable", "object": "my_rag_of_init:engine"},
    }
    assert (tree["reward"], tree["policy"]["incumbent"]) == ({"weight": 0.01, "cost": {"seconds_total": 1.0}}, "quick")
    assert "generator" not in tree
    assert list(written(run, "--yes", "--force", *given[:2])[0]["arms"]) == ["quick", "no_retrieval"]
    with every_case() as case:
        for path, part in (("neither", "which cannot be asked a question"), ("nobody", "nobody")):
            with case(path):
                code, _, err = run("--yes", "--force", "--pipeline", f"odd=my_rag_of_init:{path}")
                assert code == 2
                assert part in err


def test_prices_of_two_models(run, tmp_path, monkeypatch):
    """Prices that are given stand at the generators, and dollars are charged; a wrong number or form is refused.

    A prompt refuses a price that cannot be read with its remedy, and asks again.
    """
    with pytest.raises(InvalidResponse, match=r"'1,5' is not a price .*0\.15/0\.6"):
        _PricePrompt().process_response("1,5")
    documents(tmp_path)
    prices = ["--price", "0.15/0.6", "--price", "2.5/10"]
    with ScriptedServer({"": "So."}, models=[{"id": "qwen3:32b"}, {"id": "llama3.2:3b"}]) as server:
        tree, out = written(run, "--prefer", "balanced", "--url", server.url, *prices)
        assert tree["generators"]["small"]["token_prices"] == {"input": 0.15, "output": 0.6}
        assert tree["generators"]["large"]["token_prices"] == {"input": 2.5, "output": 10.0}
        assert tree["reward"] == {"weight": 20.0, "cost": {"dollars": 1.0}}
        assert "a right answer is worth 5 cents" in out
        for given, part in (
            (["1/2"], "1 prices for 2 models"),
            (["1", "2"], "'1' is not a price"),
            (["-1/2"] * 2, "--price"),
        ):
            words = [word for price in given for word in ("--price", price)]
            code, _, err = run("--yes", "--force", "--url", server.url, *words)
            assert code == 2
            assert part in err


def test_which_models_are_taken():
    """By the sizes in their names, else a model and its newest smaller sibling, else two as they come, else nothing."""

    def of(*names, wanted=()):
        models = tuple(ModelDescription(name=name, created=number) for number, name in enumerate(names))
        picked, _ = choose_models(ModelCatalog(url="http://x/v1", models=models), wanted=wanted)
        return tuple(model.name for model in picked)

    with every_case() as case:
        for names, expected in (
            (["one"], ("one",)),
            (["qwen2.5:14b", "llama3.2:3b", "qwen3:30b-a3b"], ("llama3.2:3b", "qwen3:30b-a3b")),
            (["gpt-4-mini", "gpt-4", "o9", "gpt-5", "gpt-5-nano", "gpt-5-mini"], ("gpt-5-mini", "gpt-5")),
            (["mistral:latest", "llama:latest"], ("mistral:latest", "llama:latest")),
        ):
            with case(*names):
                assert of(*names) == expected
        assert of("a", "b", "c", wanted=("c", "a")) == ("c", "a")
    with pytest.raises(ConfigError, match=r"3 models: a, b, c .*--model SMALL --model LARGE"):
        of("a", "b", "c")
    with pytest.raises(ConfigError, match="two models at most"):
        of("a", "b", "c", wanted=("a", "b", "c"))


@pytest.mark.skipif(not task_units(), reason="this tree has no interface of coding agents")
def test_coding_agents_get_a_decision_for_a_task(run, tmp_path):
    """--agents sets the unit `task` for the interfaces that coding agents use."""
    with ScriptedServer({"": "Paris."}, models=[{"id": "llama-3b"}, {"id": "llama-70b"}]) as server:
        code, output, _ = run("--yes", "--agents", "--url", server.url)
    assert code == 0
    assert "one decision is for a whole task" in output
    settings = load(tmp_path / "config.yaml").settings
    assert settings.conversation.units == task_units()
    assert settings.conversation.unit == "turn"
