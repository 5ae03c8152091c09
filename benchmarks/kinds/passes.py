"""Passes of a policy through a made world, and the map of its newest decisions."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.kinds.worlds import CONTEXT, LANGUAGES, WORLDS, Question, World, is_followed, questions_of, table_of
from ragbandit.router.config.sections import EncoderSettings
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.feature_cache import embed_texts
from ragbandit.router.offline.passes import Learning, table_rows
from ragbandit.router.policies import untrained_policy
from ragbandit.router.serving.explanations.kind_rewards import KindRewards
from ragbandit.router.serving.explanations.policy_map import MOST_QUESTIONS, Asked, PolicyMap, map_of_newest
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.shared.types import FeatureRows


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    world: World
    seed: int
    policy: str
    labelled: float
    questions: Sequence[Question]
    features: FeatureRows
    encoder_hash: str


def mapped(one: Pass) -> tuple[PolicyMap, bool]:
    """The map of a policy after a pass, and whether the choices that are mapped follow the rule."""
    values = {"context": CONTEXT, "policy": {"name": one.policy, "incumbent": None}, "learning": {"wait_s": 0.0}}
    settings = Settings.model_validate(values)
    table = table_of(one.world, questions=one.questions, seed=one.seed)
    own: dict[str, Any] = {"features": one.features, "encoder_hash": one.encoder_hash, "reward": settings.reward}
    rows = table_rows(table, **own, label=settings.policy.label)
    policy = untrained_policy(settings.policy_definition)
    learning = Learning(policy, rows=rows, settings=settings.policy, seed=one.seed, labelled=one.labelled)
    order = np.random.default_rng(one.seed).permutation(len(table.rows)).tolist()
    decided = [learning.step(place) for place in order][::-1]
    if learning.fault is not None:
        raise RuntimeError(f"{one.world.name}: {learning.fault}")
    played = learning.played()
    pmfs = np.array([decision.pmf for decision in decided])
    rated = np.where([learning.is_labelled(decision) for decision in decided], played.earned[::-1], np.nan)
    asked = [
        {"tenant": "public", "text": decision.query.text, "context": json.dumps(dict(decision.query.context))}
        | {"price": None, "cost_weight": None}
        for decision in decided[:MOST_QUESTIONS]
    ]
    rewards = KindRewards.of_draws(rated, drawn=played.drawn[::-1], pmfs=pmfs, most=MOST_QUESTIONS)
    questions, pmfs = [one.questions[place] for place in order[::-1][:MOST_QUESTIONS]], pmfs[:MOST_QUESTIONS]
    follows = is_followed(one.world, questions=questions, expensive=pmfs[:, -1])
    newest = Asked.of(asked, schema=settings.context)
    return map_of_newest(newest, pmfs=pmfs, arms=table.arms, earned=rewards), follows


def passes(*, seeds: range, decisions: int, policy: str, labelled: float, encoder: str | None) -> list[Pass]:
    """All passes; the questions of a language are encoded once."""
    loaded = make_encoder(EncoderSettings() if encoder is None else EncoderSettings(model=encoder))
    questions = {language: questions_of(language, decisions) for language in LANGUAGES}
    features = {
        language: embed_texts([question.text for question in asked], encoder=loaded)
        for language, asked in questions.items()
    }
    common: dict[str, Any] = {"policy": policy, "labelled": labelled, "encoder_hash": loaded.hash}
    return [
        Pass(
            world=world, seed=seed, questions=questions[world.language], features=features[world.language], **common
        )
        for world in WORLDS
        for seed in seeds
    ]  # fmt: skip
