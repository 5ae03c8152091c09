"""Made worlds whose best arm follows a rule that a reader can see in the question, in three languages, or none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ragbandit.router.offline.logs.tables import LabelledTable
from ragbandit.shared.types import ArmName, TableRow, Vector

#: steps of each arm; the rule is when the second one is needed
STEPS: Final = {ArmName("cheap"): 0.1, ArmName("dear"): 5.0}
#: probability of a right answer by each arm: rule holds, rule does not hold, world without a rule
_HELD, _ELSE, _ALWAYS = (0.3, 0.92), (0.9, 0.92), (0.6, 0.8)
#: by how much a fact of the rule must change the probability of the expensive arm, if choices follow it
LEAST_EFFECT: Final = 0.2
CONTEXT: Final = {"plan": {"type": "category", "values": ["free", "paid"]}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Language:
    beginnings: Sequence[str]
    topics: Sequence[str]  #: the first two need the expensive arm in worlds by topic
    clauses: Sequence[str]
    places: Sequence[str]
    end: str


LANGUAGES: Final[Mapping[str, Language]] = {
    "English": Language(
        beginnings=(
            "How do I get my {topic}",
            "Where is the {topic}",
            "Why is the {topic} late",
            "Can you check the {topic}",
            "Please send the {topic} again",
        ),
        topics=("refund", "refund", "parcel", "invoice", "password", "contract"),
        clauses=(
            " for the kettle that I bought in {place} last week",
            " because the letter from {place} was wrong",
            " although nobody in {place} could answer this yet",
            " and what happens if the shop in {place} closes before that",
        ),
        places=("Bristol", "Dundee", "Leeds", "Cardiff", "Derry", "Exeter"),
        end="?",
    ),
    "German": Language(
        beginnings=(
            "Wie bekomme ich die {topic}",
            "Wo ist die {topic}",
            "Warum fehlt die {topic}",
            "Kann jemand die {topic} prüfen",
            "Bitte schickt die {topic} noch einmal",
        ),
        topics=("Erstattung", "Erstattung", "Sendung", "Rechnung", "Kennung", "Zusage"),
        clauses=(
            " für den Kessel, den ich letzte Woche in {place} gekauft habe",
            " weil der Brief aus {place} falsch war",
            " obwohl niemand in {place} das bisher beantworten konnte",
            " und was geschieht, wenn der Laden in {place} vorher schließt",
        ),
        places=("Bremen", "Jena", "Kassel", "Passau", "Husum", "Ulm"),
        end="?",
    ),
    "Chinese": Language(
        beginnings=(
            "怎么才能拿到{topic}", "{topic}现在在哪里", "为什么{topic}还没有到",
            "可以查一下{topic}吗", "请再发一次{topic}"),
        topics=("退款", "退款", "包裹", "发票", "密码", "合同"),
        clauses=(
            "\uff0c上周在{place}买的水壶坏了",
            "\uff0c因为{place}来的信写错了",
            "\uff0c可是{place}没有人能回答这个问题",
            "\uff0c如果{place}的商店提前关门会怎么样",
        ),
        places=("北京", "上海", "广州", "成都", "杭州", "西安"),
        end="\uff1f",
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    language: str
    #: facts that must all hold for the expensive arm to be needed: length, topic, plan; () for no rule
    rule: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.language}, {' and '.join(self.rule) or 'no rule'}"

    def facts(self, question: "Question") -> list[bool]:
        """Whether each fact of the rule holds. A mixture of two holds for more topics, so that it is not too rare."""
        topics = 2 if len(self.rule) < 2 else 3
        facts = {"length": question.clauses >= 2, "topic": question.topic < topics, "plan": question.plan == "paid"}
        return [facts[fact] for fact in self.rule]


WORLDS: Final = (
    World(language="English", rule=("length",)),
    World(language="English", rule=("topic",)),
    World(language="English", rule=("plan",)),
    World(language="English", rule=("length", "topic")),
    World(language="German", rule=("length",)),
    World(language="German", rule=("topic",)),
    World(language="German", rule=("topic", "plan")),
    World(language="Chinese", rule=("length",)),
    World(language="Chinese", rule=("topic",)),
    *(World(language=language, rule=()) for language in LANGUAGES),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    text: str
    topic: int
    clauses: int
    plan: str


def questions_of(language: str, count: int) -> list[Question]:
    """The same questions for every seed, so that they are encoded once."""
    words, random = LANGUAGES[language], np.random.default_rng([7, *language.encode()])
    made = []
    for _ in range(count):
        topic, clauses = int(random.integers(len(words.topics))), int(random.integers(4))
        chosen = random.permutation(len(words.clauses))[:clauses]
        text = words.beginnings[int(random.integers(len(words.beginnings)))].format(topic=words.topics[topic])
        for clause in chosen:
            text += words.clauses[clause].format(place=words.places[int(random.integers(len(words.places)))])
        plan = ("free", "paid")[int(random.integers(2))]
        made.append(Question(text=text + words.end, topic=topic, clauses=clauses, plan=plan))
    return made


def table_of(world: World, *, questions: Sequence[Question], seed: int) -> LabelledTable:
    """What each arm answers in this world."""
    random = np.random.default_rng([seed, *world.name.encode()])
    rows = []
    for number, question in enumerate(questions):
        chances = _ALWAYS if not world.rule else _HELD if all(world.facts(question)) else _ELSE
        right = dict(zip(STEPS, (random.random(2) < chances).astype(float).tolist(), strict=True))
        context = {"plan": question.plan}
        rows.append(TableRow(id=str(number), question=question.text, correct=right, steps=STEPS, context=context))
    return LabelledTable(rows=tuple(rows), arms=tuple(STEPS))


def is_followed(world: World, *, questions: Sequence[Question], expensive: Vector) -> bool:
    """Whether each fact of the rule raises the probability of the expensive arm by LEAST_EFFECT or more, among the
    questions that have the other facts. expensive: the arm's probability on each question
    """
    facts = np.array([world.facts(question) for question in questions]).reshape(len(questions), len(world.rule))
    for fact in range(len(world.rule)):
        others = np.delete(facts, fact, axis=1).all(axis=1)
        effect = expensive[others & facts[:, fact]].mean() - expensive[others & ~facts[:, fact]].mean()
        if not effect >= LEAST_EFFECT:  # also NaN, without such questions
            return False
    return bool(world.rule)


def is_named(world: World, names: Sequence[str]) -> bool:
    """Whether the names of kinds have every fact of the rule."""
    topics = LANGUAGES[world.language].topics[: 2 if len(world.rule) < 2 else 3]
    signs = {"length": (" words", " characters"), "topic": topics, "plan": ("plan ",)}
    return bool(world.rule) and all(
        any(sign.casefold() in name for sign in signs[fact] for name in names) for fact in world.rule
    )
