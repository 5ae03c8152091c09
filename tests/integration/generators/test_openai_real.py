"""The generator "openai" against a real server on this machine: `transformers serve` with the wheel's SmolLM2."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from benchmarks.service_process import free_port
from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.strategies.base import Prompt, Request
from ragbandit.strategies.generators.openai_generator import OpenAiGenerator
from tests.support.waiting import until

pytestmark = [pytest.mark.models, pytest.mark.slow, pytest.mark.timeout(120)]

CAPITAL = Prompt(instructions="You answer with a short phrase.", body="What is the capital of France?")
STORY = Prompt(instructions="", body="Tell a long story about a ferry.")


@pytest.fixture(scope="session")
def url(folder, tmp_path_factory):
    command = Path(sys.executable).with_name("transformers")
    if not command.is_file() and shutil.which("transformers") is None:
        pytest.skip("the command transformers is missing: pip install 'transformers[serving]'")
    port, log = free_port(), tmp_path_factory.mktemp("serve") / "log"
    words = f"serve {folder} --host 127.0.0.1 --port {port} --device cpu --dtype float32".split()
    with log.open("wb") as written:
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        server = subprocess.Popen([command, *words], stdout=written, stderr=subprocess.STDOUT, env=environment)

    def stands():
        said = log.read_text(errors="replace")[-2000:]
        if server.poll() is not None and "Missing dependencies for serving" in said:
            pytest.skip("transformers cannot serve here: pip install 'transformers[serving]'")
        assert server.poll() is None, f"the server ended: {said}"
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).status_code == 200

    try:
        until(stands, seconds=90)  # it imports torch and loads the model
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.kill()
        server.wait(10)


def ask(url, folder, prompt=CAPITAL, *, max_tokens=8, deadline_s=None, stop=(), **options):
    async def call():
        generator = OpenAiGenerator(str(folder), options=OpenAiOptions(base_url=url, retries=0, **options))
        deadline = None if deadline_s is None else time.monotonic() + deadline_s
        try:
            return await generator.complete(
                Request(prompt=prompt, max_tokens=max_tokens, stop=stop, deadline=deadline)
            ), generator.count_tokens(prompt)
        finally:
            await generator.close()

    return asyncio.run(asyncio.wait_for(call(), 60))


def test_streamed_and_whole(url, folder):
    """The model knows the capital of France, streamed or whole, and the server counts the tokens."""
    streamed, bound = ask(url, folder)
    whole, _ = ask(url, folder, stream=False)
    assert "Paris" in streamed.text
    assert streamed.text == whole.text
    assert streamed.prompt_tokens == whole.prompt_tokens <= bound


def test_a_prompt_is_continued(url, folder):
    """At /v1/completions the model continues the prompt itself, streamed or whole, without a chat template."""
    prompt = Prompt(instructions="", body="The capital of Italy is Rome. The capital of France is")
    streamed, bound = ask(url, folder, prompt, api="completions")
    whole, _ = ask(url, folder, prompt, api="completions", stream=False)
    assert "Paris" in streamed.text
    assert (streamed.text, streamed.prompt_tokens) == (whole.text, whole.prompt_tokens)
    chat, _ = ask(url, folder, prompt)
    assert streamed.prompt_tokens < min(bound, chat.prompt_tokens)


def test_stop_and_length(url, folder):
    """A stop string is not in the text, and max_tokens ends it."""
    stopped, _ = ask(url, folder, stop=("Paris",), max_tokens=12)
    assert stopped.finish == "stop"
    assert "Paris" not in stopped.text
    cut, _ = ask(url, folder, STORY, max_tokens=3)
    assert (cut.finish, cut.completion_tokens) == ("length", 3)


def test_deadline(url, folder):
    """At the deadline the text so far is there, in time, and the server answers the next call."""
    began = time.monotonic()
    late, _ = ask(url, folder, STORY, max_tokens=400, deadline_s=3.0)
    assert time.monotonic() - began < 15.0
    assert late.finish == "deadline"
    assert late.text
    after, _ = ask(url, folder)
    assert "Paris" in after.text


def test_what_it_does_not_offer(url, folder):
    """This server knows no other model."""
    with pytest.raises(ArmFailed):
        ask(url, "no/such-model")
