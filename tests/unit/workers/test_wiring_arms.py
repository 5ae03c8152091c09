"""From settings to the arms of workers: one preset for all, and hints at what was most likely not meant."""

import logging

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.workers.wiring.generators import WorkerArm, check_arms, hints, worker_arms

OPENAI = {"name": "openai", "model": "gpt", "openai": {"base_url": "http://127.0.0.1:9/v1"}}


def test_one_preset_for_every_arm_that_has_it():
    """arms_preset reaches arms without a preset of their own; one that has none of that name stays as it is."""
    arms = {"single_step": {"passages": 4}, "multi_step": {"preset": "gpt"}, "flare": {}, "mine": {"run_by": "caller"}}
    arms["web"] = {"class": "http", "url": "http://h/x"}
    made = worker_arms(Settings(arms=arms, arms_preset="chat"))
    assert {name: arm.params for name, arm in made.items()} == {
        "single_step": {"preset": "chat", "passages": 4},
        "multi_step": {"preset": "gpt"},
        "flare": {},
        "web": {"class": "http", "url": "http://h/x"},
    }


def test_without_it_nothing_is_added():
    """A configuration that does not name a preset makes the arms that it made before."""
    assert worker_arms(Settings(arms={"single_step": {}})) == {"single_step": WorkerArm()}


def test_a_preset_that_no_arm_has_is_refused():
    """The error names the setting and the presets there are."""
    with pytest.raises(ConfigError, match="'chatt'") as caught:
        check_arms(Settings(arms={"single_step": {}}, arms_preset="chatt"))
    assert caught.value.field == "arms_preset"
    assert "chat, flan, gpt, small" in caught.value.remedy


def test_short_answers_of_a_large_model_are_hinted_at(caplog):
    """With an OpenAI-compatible server and the defaults for small models the log says what to set, once a check."""
    with caplog.at_level(logging.WARNING):
        check_arms(Settings(generator=OPENAI))
    (record,) = caplog.records
    assert "no_retrieval, single_step, multi_step" in record.getMessage()
    assert "arms_preset: chat" in record.getMessage()


@pytest.mark.parametrize(
    "settings",
    [
        {"generator": OPENAI, "arms_preset": "chat"},
        {"generator": OPENAI, "arms_preset": "small"},
        {"generator": OPENAI, "arms": {"single_step": {"max_tokens": 200}, "multi_step": {"preset": "gpt"}}},
        {"generator": OPENAI, "arms": {"mine": {"run_by": "caller"}}},
        {"generator": {"name": "local"}},
        {"generator": {**OPENAI, "openai": {"token_prices": {"gpt": [1.0, 2.0]}}}, "arms_preset": "chat"}
        | {"budget": {"dollars": 0.1}},
        {"generator": {"token_prices": {"input": 1.0, "output": 2.0}}, "budget": {"dollars": 0.1}},
    ],
)
def test_nothing_is_said_where_it_was_chosen(settings):
    """Whoever chose a preset, a length or prices gets no hint."""
    assert hints(Settings(**settings)) == ()


@pytest.mark.parametrize("generator", [{"name": "local"}, OPENAI])
def test_a_cap_on_dollars_without_prices_is_hinted_at(generator):
    """budget.dollars caps nothing where calls have no price."""
    (hint,) = hints(Settings(generator=generator, arms_preset="chat", budget={"dollars": 0.1}))
    assert hint.startswith("budget.dollars: ")
    assert "set generator.token_prices, or cap budget.tokens" in hint
