"""Two stages: search once, write about what was found, then answer; the single-time arms of Adaptive-Note.

chain_of_note (Yu et al. 2024), self_refine and self_rerank, as prompts, the way Adaptive-Note (Wang et al. 2024)
compares itself with them. It leaves the second stage open; here it is a reader that sees the first stage's text in
place of the passages (self_rerank: the passages that the first stage calls useful).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ragbandit.router.types import ArmName, Json
from ragbandit.strategies.arm_parts.params import ArmParams, public_params, read_params
from ragbandit.strategies.arm_parts.steps import gather_once, settled_in, stop_reason
from ragbandit.strategies.base import Need, OutOfBudget, Passage
from ragbandit.strategies.prompting.passages import PassagePool, extract_answer, has_answer
from ragbandit.strategies.prompting.prompts import Template, ask, load_templates
from ragbandit.strategies.run import Answer, Run

__all__ = ["AnswerStyle", "NoteParams", "TwoStages", "answer_from", "one_line"]

#: "short" asks for a few words, "long" for a paragraph
AnswerStyle = Literal["short", "long"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NoteParams(ArmParams):
    """Settings of chain_of_note, self_refine and self_rerank."""

    #: "small" is for local models of a few hundred million parameters; "paper" has Adaptive-Note's numbers;
    #: "chat" is for large chat models
    preset: Literal["small", "paper", "chat"] = "small"
    #: of the final reader
    style: AnswerStyle = "short"
    #: passages searched for and shown
    passages: Annotated[int, Field(ge=1)] = 3
    #: words of one passage in a prompt
    passage_words: Annotated[int, Field(ge=1)] = 350
    #: tokens of the notes, the summary or the verdicts
    note_tokens: Annotated[int, Field(ge=1)] = 96
    #: tokens of the answer
    max_tokens: Annotated[int, Field(ge=1)] = 32
    #: own prompts: template name -> text, or path of a file
    templates: dict[str, str] = field(default_factory=dict)

    presets: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "paper": {"passages": 5, "note_tokens": 1280, "max_tokens": 1280},
        "chat": {"style": "long", "passages": 5, "note_tokens": 512, "max_tokens": 512},
    }


async def answer_from(
    run: Run,
    *,
    template: Template,
    fields: Mapping[str, str],
    style: AnswerStyle,
    max_tokens: int,
    pool: PassagePool | None = None,
    passages: Sequence[Passage] | None = None,
    passage_words: int = 350,
) -> str:
    """The final answer, "" if the model said nothing; it becomes the draft, as does one that the deadline cut short.

    A "short" answer is the first line without its dress (`extract_answer`), a "long" one the whole text.
    """
    try:
        done = await ask(
            run,
            template=template,
            purpose="read",
            fields=fields,
            max_tokens=max_tokens,
            pool=pool,
            passages=passages,
            passage_words=passage_words,
            stop=("\n",) if style == "short" else (),
            conversation=True,
            final=settled_in(style),
        )
    except OutOfBudget:
        run.draft = _final(run.partial, style=style) or run.draft
        raise
    answer = _final(done.text, style=style)
    run.draft = answer or run.draft
    return answer


def _final(text: str, *, style: AnswerStyle) -> str:
    return extract_answer(text) if style == "short" else text.strip()


def one_line(text: str) -> str:
    """The text with every run of white space as one space: line breaks part words, they do not join them."""
    return " ".join(text.split())


class TwoStages:
    """Search once, a first stage over the passages, a reader: one step, two calls.

    Without passages (the budget allows no round or none, or nothing was found) the first stage is skipped, which
    the trace says, and the reader answers alone. Stops with "answered" or "empty_answer".
    """

    needs: frozenset[Need] = frozenset({"completion", "stop"})
    presets: ClassVar = NoteParams.presets
    #: name of the arm and of its first stage's template
    _stage: ClassVar[str]
    #: style -> the reader's template
    _readers: ClassVar[Mapping[AnswerStyle, str]] = {"short": "read_notes_short", "long": "read_notes_long"}

    def __init__(self, *, name: str | None = None, **params: object) -> None:
        self.name = ArmName(name or self._stage)
        self._params = read_params(NoteParams, given=params, arm=self.name)
        self.params = public_params(self._params)
        reader = self._readers[self._params.style]
        where = f"arms.{self.name}.templates"
        templates = load_templates([self._stage, reader], overrides=self._params.templates, field=where)
        self._stage_template, self._reader_template = templates[self._stage], templates[reader]

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Search, write, read."""
        pool = PassagePool(cap=run.passage_cap(self._params.passages))
        await gather_once(run, query=question, pool=pool, k=self._params.passages)
        text = ""
        if pool.passages:
            text = await self._write(question, run=run, pool=pool)
        else:
            run.note_branch("first_stage_skipped", "there is no passage")
        answer = await self._read(question, text=text, run=run, pool=pool)
        return Answer(text=answer, stop_reason=stop_reason(answer, otherwise="answered"))

    async def _write(self, question: str, *, run: Run, pool: PassagePool) -> str:
        done = await ask(
            run,
            template=self._stage_template,
            purpose=self._stage,
            fields={"question": question},
            pool=pool,
            max_tokens=self._params.note_tokens,
            passage_words=self._params.passage_words,
        )
        return done.text.strip()

    async def _read(self, question: str, *, text: str, run: Run, pool: PassagePool) -> str:  # noqa: ARG002 SelfRerank's
        run.draft = (extract_answer(text) if has_answer(text) else text) or run.draft
        return await answer_from(
            run,
            template=self._reader_template,
            fields={"question": question, "notes": text or "none"},
            style=self._params.style,
            max_tokens=self._params.max_tokens,
        )
