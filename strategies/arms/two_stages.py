"""`chain_of_note`, `self_refine`, `self_rerank`: search once, write about what was found, then answer.

The single-time arms of Adaptive-Note: chain_of_note (Yu et al. 2024), self_refine and self_rerank, as prompts, the way
Adaptive-Note (Wang et al. 2024) compares itself with them. It leaves the second stage open; here it is a reader that
sees the first stage's text in place of the passages (self_rerank: the passages that the first stage calls useful).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ragbandit.strategies.arm_parts.params import Count, PassageParams, preset_table
from ragbandit.strategies.arm_parts.prompted import PromptedArm
from ragbandit.strategies.arm_parts.steps import AnswerStyle, gather_once, stop_reason
from ragbandit.strategies.base import Passage
from ragbandit.strategies.prompting.passages import PassagePool, extract_answer, has_answer, parsed_numbered_labels
from ragbandit.strategies.run import Answer, Run

_USEFUL = "useful"

#: all verdicts: what is asked for, and what small models say instead of useless
_VERDICTS = (_USEFUL, "useless", "not useful")


@dataclass(frozen=True, kw_only=True, slots=True)
class NoteParams(PassageParams):
    """Settings of chain_of_note, self_refine and self_rerank."""

    #: "small" is for local models of a few hundred million parameters; "paper" has Adaptive-Note's numbers;
    #: "chat" is for large chat models
    preset: Literal["small", "paper", "chat"] = "small"
    #: of the final reader
    style: AnswerStyle = "short"
    #: passages searched for and shown
    passages: Count = 3
    #: tokens of the notes, the summary or the verdicts
    note_tokens: Count = 96

    presets: ClassVar = preset_table(
        "max_tokens style passages note_tokens",
        paper=(1280, "short", 5, 1280),
        chat=(512, "long", 5, 512),
    )


class _TwoStages(PromptedArm[NoteParams]):
    """Search once, a first stage over the passages, a reader: one step, two calls.

    Without passages (the budget allows no round or none, or nothing was found) the first stage is skipped, which
    the trace says, and the reader answers alone. Stops with "answered" or "empty_answer".
    """

    kind = NoteParams

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Search, write, read."""
        pool = PassagePool(cap=run.passage_cap(self._params.passages))
        await gather_once(run, query=question, pool=pool, k=self._params.passages)
        text = ""
        if pool.passages:
            most, purpose = self._params.note_tokens, self._templates["stage"].name
            fields = {"question": question}
            done = await self._ask("stage", fields, run=run, purpose=purpose, max_tokens=most, pool=pool)
            text = done.text.strip()
        else:
            run.note_branch("first_stage_skipped", "there is no passage")
        answer = await self._answer_from(text, question=question, run=run, pool=pool)
        return Answer(text=answer, stop_reason=stop_reason(answer, otherwise="answered"))

    async def _answer_from(self, text: str, *, question: str, run: Run, pool: PassagePool) -> str:  # noqa: ARG002 SelfRerank's
        run.draft = (extract_answer(text) if has_answer(text) else text) or run.draft
        fields = {"question": question, "notes": text or "none"}
        return await self._read(question, run=run, style=self._params.style, fields=fields)


class ChainOfNote(_TwoStages):
    """Notes on every passage and what they are worth, then the answer from the notes."""

    prompts: ClassVar = {"stage": "chain_of_note", "read": "read_notes_{style}"}


class SelfRefine(_TwoStages):
    """A summary and analysis of what is useful in the passages, then the answer from it."""

    prompts: ClassVar = {"stage": "self_refine", "read": "read_notes_{style}"}


class SelfRerank(_TwoStages):
    """A verdict on every passage, useful or useless, then the answer from the useful ones.

    Passages without a verdict are written into the trace as "parse_failed" and not kept. If no passage has a
    verdict, or none is useful, all are kept; the trace says which of the two as "kept_all".
    """

    prompts: ClassVar = {"stage": "self_rerank", "read": "read_direct"}

    def _template_names(self) -> dict[str, str]:
        return super()._template_names() | ({"read": "read_long"} if self._params.style == "long" else {})

    async def _answer_from(self, text: str, *, question: str, run: Run, pool: PassagePool) -> str:
        # The first verdict may have been begun for the model.
        passages = _useful(f"{self._templates['stage'].prefix} {text}", run=run, passages=pool.passages)
        return await self._read(question, run=run, style=self._params.style, pool=pool, passages=passages)


def _useful(text: str, *, run: Run, passages: Sequence[Passage]) -> Sequence[Passage]:
    if not passages:
        return ()
    labels = parsed_numbered_labels(text, labels=_VERDICTS, count=len(passages))
    numbered = list(enumerate(passages, start=1))
    unlabelled = [passage.id for number, passage in numbered if number not in labels]
    if unlabelled:
        run.note_branch(
            "parse_failed", f"{len(unlabelled)} of {len(passages)} without verdict: {', '.join(unlabelled)}"
        )
    useful = [passage for number, passage in numbered if labels.get(number) == _USEFUL]
    if not useful:
        run.note_branch("kept_all", "none is useful" if labels else "no verdict")
        return passages
    run.note_branch("kept", ", ".join(passage.id for passage in useful))
    return useful
