"""The generator "openai" with `api: completions`: one prompt text instead of a chat, otherwise as with chats."""

import json

import pytest
import yaml

from ragbandit.router.config.sections import GeneratorSettings
from ragbandit.router.config.settings import Settings
from ragbandit.router.serving.abilities import passing_arms
from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.shared.model_servers.failures import ServerFailed
from ragbandit.shared.types import Message
from ragbandit.strategies.base import Account, Prompt
from ragbandit.strategies.failures import AnswerBlocked
from ragbandit.strategies.generators.parts import Token
from ragbandit.testing.doubles import STREAM_CHECKS
from ragbandit.testing.openai_server import Reply, ScriptedServer
from ragbandit.workers.setup import generators
from tests.support import command
from tests.support.additions import needs
from tests.support.logs.log_rows import write_json
from tests.support.servers.openai_calls import CAPITAL, ask, sent
from tests.support.servers.openai_settings import settings

WANTED = {"want": frozenset({"logprobs"})}
BOTH = pytest.mark.parametrize("stream", [True, False])
pytestmark = pytest.mark.timeout(60)


def asked(server, prompt=CAPITAL, **options):
    return ask(server, prompt, api="completions", **options)[0]


@BOTH
def test_the_prompt_is_one_text(stream):
    """Instructions, conversation, question and the beginning of the answer are one text, for the path of prompts."""
    earlier = (Message(role="user", text="Is it large?"), Message(role="assistant", text="Yes."))
    prompt = Prompt(instructions="Answer shortly.", body="Where is it?", prefix="It lies in", history=earlier)
    with ScriptedServer([" the north."]) as server:
        done = asked(server, prompt, seed=3, stream=stream, request={"stop": ("\n", "")})
        [request] = server.requests
    parts = [
        "Answer shortly.",
        "The conversation so far:\nUser: Is it large?\nAssistant: Yes.",
        "Where is it?",
        "It lies in",
    ]
    assert request.path == "/v1/completions"
    assert request.body == {
        "model": "gpt",
        "prompt": "\n\n".join(parts),
        "max_tokens": 24,
        "temperature": 0.0,
        "seed": 3,
        "stop": ["\n"],
        "stream": stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
    }
    assert (done.text, done.finish) == (" the north.", "stop")


@BOTH
def test_text_usage_and_dollars(stream):
    """Text, tokens, cached tokens and dollars are those of the server's reply; max_tokens cuts the text."""
    cached = Reply(text="Paris it is", changes={"usage": {"prompt_tokens_details": {"cached_tokens": 6}}})
    prices = {"gpt": (10.0, 20.0, 1.0)}
    with ScriptedServer({"": cached}) as server:
        done, cut = (asked(server, stream=stream, token_prices=prices, max_tokens=most) for most in (24, 2))
    assert (done.text, done.finish, done.estimated) == ("Paris it is", "stop", False)
    assert (done.prompt_tokens, done.completion_tokens, done.cached_tokens) == (8, 3, 6)
    assert done.dollars == pytest.approx((2 * 10.0 + 6 * 1.0 + 3 * 20.0) / 1e6)
    assert (cut.text, cut.finish) == ("Paris it", "length")


@BOTH
def test_log_probabilities_in_the_older_form(stream):
    """The server is asked for one alternative; tokens and log-probabilities come from its three lists."""
    with ScriptedServer(["In Paris"]) as server:
        done = asked(server, stream=stream, logprobs=True, request=WANTED)
        assert sent(server)["logprobs"] == 1
    assert list(done.details["logprobs"]) == [Token(text=text, logprob=-0.5) for text in ("In", " Paris")]


def test_missing_log_probabilities_fail_the_call():
    """A server that sends none is an error with the setting."""
    with ScriptedServer([Reply(text="In Paris", obedient=False)]) as server:
        failed = asked(server, logprobs=True, request=WANTED)
    assert isinstance(failed, ArmFailed)
    assert failed.field == "generator.openai.logprobs"


@pytest.mark.parametrize("check", STREAM_CHECKS, ids=lambda check: check.__name__)
def test_a_text_is_streamed(check):
    """The pieces that are sent while the server writes are the text that is returned."""
    with ScriptedServer(lambda _: Reply(text="It lies in the north of France, by the sea. So it is.")) as server:
        check(lambda _text: generators.make_generator(settings(base_url=server.url, api="completions")))


def test_failures_are_repeated_and_booked():
    """A refused call is repeated; a stream that breaks off fails the call, and what came of it is booked."""
    again = [Reply(status=429, retry_after=0.01), "Paris"]
    with ScriptedServer(again) as server:
        assert asked(server).text == "Paris"
        assert len(server.requests) == 2
    lost = Account()
    with ScriptedServer([Reply(text="Paris on the Seine, with many bridges", cut=True)]) as server:
        failed = asked(server, token_prices={"gpt": (1e6, 1e6)}, request={"lost": lost})
    assert isinstance(failed, ServerFailed)
    assert min(lost.cost.prompt_tokens, lost.cost.completion_tokens) > 0
    assert lost.cost.dollars == lost.cost.prompt_tokens + lost.cost.completion_tokens


def test_a_blocked_text_fails():
    """A text that the content filter ended is no answer."""
    with ScriptedServer([Reply(text="Paris", finish="content_filter")]) as server:
        assert isinstance(asked(server), AnswerBlocked)


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_model_of_the_other_endpoint_is_named_in_the_remedy(api):
    """A server that refuses the endpoint for its model (404) gets a remedy that names the setting."""
    refused = Reply(status=404, text="This is not a chat model. Did you mean to use v1/completions?")
    with ScriptedServer([refused]) as server:
        failed = ask(server, api=api)[0]
    assert isinstance(failed, ServerFailed)
    assert "generator.openai.api" in failed.remedy


def test_chats_are_not_passed_on():
    """An arm of the class `model` gets no chats, so tools are not its ability, and a param for chats is refused."""
    section = {"name": "openai", "model": "gpt", "openai": {"api": "completions", "base_url": "http://h"}}
    arms = {"instruct": {"class": "model"}}
    assert passing_arms(arms, generators={"default": GeneratorSettings(**section)}) == {}
    section["openai"] = {"base_url": "http://h"}
    assert passing_arms(arms, generators={"default": GeneratorSettings(**section)}).keys() == arms.keys()
    made = Settings(generator=section | {"openai": {"api": "completions", "base_url": "http://h"}})
    with pytest.raises(ConfigError, match="needs chat") as caught:
        generators.make_strategies(made, {"instruct": generators.WorkerArm(params={"class": "model", "effort": "low"})})
    assert caught.value.field == "arms.instruct"
    assert "generator.openai.api" in caught.value.remedy


@needs("evaluation")
def test_from_a_configuration_to_answers(tmp_path):
    """`evaluate` answers with an instruct model: the papers' three arms, from config.yaml, with their dollars."""
    write_json(tmp_path / "corpus.jsonl", [{"id": "a", "title": "Jaws", "text": "Jaws was made by Spielberg in 1975."}])
    write_json(tmp_path / "questions.jsonl", [{"question": "Who made Jaws?", "answers": ["Spielberg"]}])
    arms = {"no_retrieval": {}, "single_step": {}, "multi_step": {}}
    with ScriptedServer({"": "So the answer is: Spielberg."}) as server:
        section = {"name": "openai", "model": "gpt-3.5-turbo-instruct", "token_prices": {"input": 1.5, "output": 2.0}}
        section["openai"] = {"api": "completions", "base_url": server.url}
        tree = {"data_dir": str(tmp_path / "data"), "encoder": {"model": "hashing"}, "generator": section, "arms": arms}
        config = tmp_path / "config.yaml"
        config.write_text(yaml.safe_dump(tree))
        command.run("index", "build", "--corpus", tmp_path / "corpus.jsonl", "--config", config, code=0)
        given = ["--questions", tmp_path / "questions.jsonl", "--answers", tmp_path / "answers.jsonl"]
        command.run("evaluate", *given, "--config", config, "--strategy", ",".join(arms), code=0)
        assert {request.path for request in server.requests} == {"/v1/completions"}
        assert all("Who made Jaws?" in request.body["prompt"] for request in server.requests)
    stored = {row["arm"]: row for row in map(json.loads, (tmp_path / "answers.jsonl").read_text().splitlines())}
    assert stored.keys() == arms.keys()
    assert all(row["answer"] == "Spielberg" and row["cost"]["dollars"] > 0 for row in stored.values())
