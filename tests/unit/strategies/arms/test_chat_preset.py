"""The preset "chat": answers of large chat models come whole."""

import pytest

from tests.support.arms.arm_runs import CHAT, made, outcome_of

PARAGRAPHS = "Spielberg made Jaws. The answer is not one word.\n\nHe came from Cincinnati, in Ohio."


@pytest.mark.parametrize("name", CHAT)
def test_an_answer_of_several_lines_comes_whole(name):
    """Neither a line break nor "the answer is" cuts what the model wrote, of 512 tokens; without it a line of 32."""
    small, chat = made(name).params, made(name, preset="chat", max_tokens=99).params
    assert (small["preset"], small["max_tokens"], chat["max_tokens"]) == ("small", 32, 99)
    assert small["style"] in ("direct", "short")
    arm = made(name, preset="chat")
    assert arm.params["max_tokens"] == 512
    outcome = outcome_of(arm, lambda prompt: PARAGRAPHS)
    assert outcome.status == "answered", outcome.error
    assert outcome.answer == PARAGRAPHS
