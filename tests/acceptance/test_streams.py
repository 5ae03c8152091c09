"""A worker is killed in the middle of a streamed answer."""

import pytest

WORDS = " ".join(f"word{number}" for number in range(60))


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_worker_killed_in_mid_stream(make_system):
    """Another worker runs the arm again after kill -9: the reader has the whole answer, once, and one decision."""
    system = make_system(
        generator={"name": "scripted", "script": {"": WORDS}, "script_word_s": 0.1},
        arms={"single_step": {"style": "long", "max_tokens": 100}},
        budget={"seconds": 60.0},
    )
    texts, outcomes, killed = [], [], False
    with system.client(timeout_s=120) as client:
        for event in client.answer_stream("What is the capital of France?", wait_s=120):
            if event.event == "text":
                texts.append(event.data["text"])
            if event.event == "outcome":
                outcomes.append(event.data)
            if len(texts) == 5 and not killed:
                killed = True
                system.restart("answer")
        counted = client.status()["counters"]
    assert killed
    assert "".join(texts) == WORDS == outcomes[0]["answer"]
    assert len(outcomes) == 1
    assert counted["decided"] == 1
