"""Every registered arm, with settings that are not its defaults, keeps the contract of arms."""

import itertools

import pytest
import yaml

from ragbandit.shared.types import Budget
from ragbandit.strategies.registry import ARMS
from ragbandit.testing.arms import (
    ARM_CHECKS,
    check_heeds_the_cap_on_seconds,
    check_lets_cancellation_through,
    generator,
    run,
)
from tests.support.arms.arm_runs import made

#: for every arm a value other than the default for every param
SETTINGS = yaml.safe_load(r"""
no_retrieval:
- {preset: gpt, style: reasoned, max_tokens: 20, templates: {recall_reasoned: "[body]\n{question}"}}
single_step:
- {preset: gpt, style: reasoned, passages: 2, passage_words: 5, max_tokens: 20,
   templates: &read {read_reasoned: "[body]\n{passages}{question}"}}
- {preset: flan}
multi_step:
- {preset: gpt, style: reasoned, rounds: 2, passages_per_round: 1, passages: 2, passage_words: 5,
   sentence_tokens: 7, max_tokens: 20, templates: *read}
- {preset: flan}
- {passages: 1}
adaptive_note:
- {preset: paper, style: long, updates: 4, failures: 2, keep: every, passages: 5, passages_per_round: 1,
   query_characters: 60, passage_words: 5, note_tokens: 20, question_tokens: 9, max_tokens: 20,
   templates: {read_notes_long: "[body]\n{notes}{question}"}}
- {preset: paper}
chain_of_note: &stages
- {preset: paper, style: long, passages: 2, passage_words: 5, note_tokens: 20, max_tokens: 20}
self_refine: *stages
self_rerank: *stages
react:
- {preset: paper, unfinished: thought, style: reasoned, turns: 3, passages_per_search: 2, passages: 5, sentences: 1,
   passage_words: 5, turn_tokens: 40, max_tokens: 20, templates: *read}
- {preset: paper}
self_rag:
- {preset: paper, style: reasoned, rewrites: 2, regenerations: 2, passages_per_round: 2, passages: 5, passage_words: 5,
   grade_tokens: 4, query_tokens: 20, max_tokens: 20, templates: *read}
- {}
rq_rag:
- {preset: paper, style: reasoned, tree: true, choose: confidence, depth: 2, queries: 2, passages_per_query: 1,
   passages: 5, passage_words: 5, decide_tokens: 8, query_tokens: 20, max_tokens: 20, templates: *read}
- {preset: paper}
- {preset: paper, tree: true}
dragin:
- {preset: llama2_2wiki, theta: 0.2, query_words: 3, rounds: 1, sentences: 2, passages: 1, passage_words: 5,
   text_tokens: 30, max_tokens: 20, templates: &conclude {conclude: "[body]\n{passages}{question}\n{thoughts}"}}
flare:
- {preset: code, theta: 0.6, beta: 0.3, second_call: true, rounds: 2, sentences: 2, passages: 1, passage_words: 5,
   query_words: 4, sentence_tokens: 30, max_tokens: 20, templates: *conclude}
- {}
seakr:
- {preset: single_hop, hops: multi, delta: -5.0, alpha: 0.01, layer: 2, samples: 2, temperature: 0.7, top_p: 0.8,
   top_k: 5, seed: 3, passages: 2, kept_passages: 1, sentences: 2, sure: 0.5, passage_words: 5, sentence_tokens: 30,
   sample_tokens: 7, max_tokens: 20, templates: *conclude}
- {samples: 2, delta: -9.0}
- {hops: multi, samples: 2, delta: -6.0}
self_rag_trained:
- {preset: paper, threshold: 0.3, passages: 2, passage_words: 5, max_tokens: 20, relevance_weight: 0.5,
   support_weight: 0.5, utility_weight: 1.0, gate_tokens: ["[Search]", "[No Retrieval]"],
   relevance_tokens: ["[Relevant]", "[Off]"], utility_tokens: ["[U1]", "[U2]", "[U3]", "[U4]", "[U5]"],
   support_tokens: ["[Fully supported]", "[Partially supported]", "[Unsupported]"],
   templates: {self_rag_answer: "[body]\nQ: {question}"}}
- {}
""")
for _name in ("chain_of_note", "self_refine", "self_rerank"):
    SETTINGS[_name] = [{**SETTINGS[_name][0], "templates": {_name: "[body]\n{passages}{question}"}}]
CHAT = ("no_retrieval", "single_step", "multi_step", "adaptive_note", "react", "self_rag", "rq_rag")
CHAT += ("chain_of_note", "self_refine", "self_rerank")
for _name in CHAT:
    SETTINGS[_name].append({"preset": "chat"})
#: They ask a pipeline elsewhere, and neither retriever nor generator of ours: tests/integration/arms/.
ELSEWHERE = {"http", "callable", "cascade", "model"}
CASES = [(name, settings) for name in sorted(set(ARMS) - ELSEWHERE) for settings in SETTINGS.get(name, [{}])]
#: that let time pass: for one setting of each arm, as prompts and numbers change nothing about a clock
BY_THE_CLOCK = {check_heeds_the_cap_on_seconds, check_lets_cancellation_through}
NAMES = sorted(set(ARMS) - ELSEWHERE)


@pytest.mark.parametrize("name", NAMES)
def test_every_arm_keeps_the_contract(name):
    """With each of its settings the arm passes all checks; those that it does not are named, with the settings."""
    broken = []
    for number, settings in enumerate(SETTINGS.get(name, [{}])):
        for check in ARM_CHECKS:
            if check in BY_THE_CLOCK and number:
                continue
            try:
                check(lambda settings=settings: made(name, **settings))
            except Exception as error:
                error.add_note(f"{check.__name__} of {name} with {settings}")
                broken.append(error)
    if broken:
        raise ExceptionGroup(f"{name} breaks the contract", broken)


@pytest.mark.parametrize("name", NAMES)
def test_caps_on_rounds_and_passages_end_none_of_our_arms(name):
    """Caps on rounds and passages end no arm early: each arm checks them before it spends."""
    budgets = [Budget(rounds=1, passages=1)]
    budgets += [cap for allowed in (0, 1, 2) for cap in (Budget(rounds=allowed), Budget(passages=allowed))]
    texts = (None, "Jaws was born somewhere. " * 3, "Jaws was born near " * 50, "Action 1: search[jaws]")
    for settings, budget, text in itertools.product(SETTINGS.get(name, [{}]), budgets, texts):
        outcome = run(made(name, **settings), budget=budget, generator_=generator(text=text))
        assert outcome.status == "answered", (settings, budget, text, outcome.stop_reason, outcome.error)


@pytest.mark.parametrize("name", NAMES)
def test_the_contract_runs_with_settings_that_are_not_defaults(name):
    """Every param of every registered arm has a tested value other than its default."""
    default, tested = made(name).params, made(name, **SETTINGS[name][0]).params
    assert [param for param in default if default[param] == tested[param]] == []
