from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ragbandit.additions.research_arms.replies import parse_items, parse_numbered_labels, parse_yes_no
from ragbandit.shared.types import Json
from ragbandit.strategies.arm_parts.prompted import (
    Count,
    PassageParams,
    PromptedArm,
    PromptSource,
    Whole,
    preset_table,
)
from ragbandit.strategies.arm_parts.steps import AnswerStyle, gather, gather_once, make_answer
from ragbandit.strategies.base import Passage
from ragbandit.strategies.prompting.passages import PassagePool, extract_answer, has_answer
from ragbandit.strategies.run import Answer, Run

_USEFUL = "useful"
_VERDICTS = (_USEFUL, "useless", "not useful")  #: accepted verdicts; small models write "not useful" for "useless"


@dataclass(frozen=True, kw_only=True, slots=True)
class NoteParams(PassageParams):
    preset: Literal["small", "paper", "chat"] = "small"
    style: AnswerStyle = "short"
    passages: Count = 3
    note_tokens: Count = 96  #: maximum number of tokens of the first call, which writes notes, a summary or verdicts
    prompts: PromptSource = "ours"

    presets: ClassVar = preset_table(
        "max_tokens style passages note_tokens prompts",
        paper=(1280, "short", 5, 1280, "paper"),
        chat=(512, "long", 5, 512, "ours"),
    )
    later: ClassVar = {"prompts": "ours"}


class _TwoStages(PromptedArm[NoteParams]):
    """Searches once, writes about the passages in a first call, and answers in a second call: 1 step.

    If there is no passage, the first call is skipped, and the trace records that. Stop reasons: "answered",
    "empty_answer".
    """

    kind = NoteParams
    package = __package__

    async def answer(self, question: str, *, run: Run) -> Answer:
        pool = PassagePool(cap=run.passage_cap(self._params.passages))
        await gather_once(run, query=question, pool=pool, k=self._params.passages, clean=not self._from_paper)
        text = ""
        if pool.passages:
            limit, purpose = self._params.note_tokens, self._templates["stage"].name
            fields = {"question": question}
            done = await self._ask("stage", fields, run=run, purpose=purpose, max_tokens=limit, pool=pool)
            text = done.text.strip()
        else:
            run.note_branch("first_stage_skipped", "there is no passage")
        return make_answer(await self._answer_from(text, question=question, run=run, pool=pool), "answered")

    async def _answer_from(self, text: str, *, question: str, run: Run, pool: PassagePool) -> str:  # noqa: ARG002 SelfRerank's
        run.draft = (extract_answer(text) if has_answer(text) else text) or run.draft
        return await self._read(question, run=run, fields={"question": question, "notes": text or "none"})


class ChainOfNote(_TwoStages):
    """Writes a note on every passage and its relevance, then answers from the notes."""

    arm: ClassVar[str] = "chain_of_note"
    prompts: ClassVar = {"stage": "chain_of_note", "read": "read_notes_{style}"}
    paper_prompts: ClassVar = {"stage": "paper_chain_of_note", "read": "paper_read_notes_{style}"}


class SelfRefine(_TwoStages):
    """Summarizes and analyses the useful parts of the passages, then answers from the summary."""

    arm: ClassVar[str] = "self_refine"
    prompts: ClassVar = {"stage": "self_refine", "read": "read_notes_{style}"}
    paper_prompts: ClassVar = {"stage": "paper_self_refine", "read": "paper_read_notes_{style}"}


class SelfRerank(_TwoStages):
    """Judges every passage as useful or useless, then answers from the useful ones.

    Passages without a verdict are left out, and recorded in the trace as "parse_failed". If no passage is judged
    useful, the arm answers from all passages, and the trace records "kept_all" with the reason.
    """

    arm: ClassVar[str] = "self_rerank"
    prompts: ClassVar = {"stage": "self_rerank", "read": "read_{_reader}"}
    paper_prompts: ClassVar = {"stage": "paper_self_rerank", "read": "paper_read_{style}"}

    def _marks(self) -> dict[str, Json]:
        style = self._params.style
        return {**super()._marks(), "_reader": "direct" if style == "short" else style}

    async def _answer_from(self, text: str, *, question: str, run: Run, pool: PassagePool) -> str:
        # The prompt may end with the beginning of the first verdict. So this prefix is parsed together with the reply.
        passages = _select_useful(f"{self._templates['stage'].prefix} {text}", run=run, passages=pool.passages)
        return await self._read(question, run=run, passages=passages)


def _select_useful(text: str, *, run: Run, passages: Sequence[Passage]) -> Sequence[Passage]:
    if not passages:
        return ()
    labels = parse_numbered_labels(text, labels=_VERDICTS, count=len(passages))
    numbered = list(enumerate(passages, start=1))
    unlabelled = [passage.id for number, passage in numbered if number not in labels]
    if unlabelled:
        ids = ", ".join(unlabelled)
        run.note_branch("parse_failed", f"{len(unlabelled)} of {len(passages)} without verdict: {ids}")
    useful = [passage for number, passage in numbered if labels.get(number) == _USEFUL]
    if not useful:
        run.note_branch("kept_all", "none is useful" if labels else "no verdict")
        return passages
    run.note_branch("kept", ", ".join(passage.id for passage in useful))
    return useful


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveNoteParams(PassageParams):
    preset: Literal["small", "paper", "chat"] = "small"
    style: AnswerStyle = "short"
    updates: Whole = 2  #: maximum number of updates of the note (CI in the paper)
    failures: Count = 1  #: number of failed updates after which the arm answers (IU in the paper)
    #: "better": a new note is kept only if a comparison finds it better; otherwise the update counts as failed.
    #: "every": each new note is kept without a comparison (the paper's ablation without the memory reviewer)
    keep: Literal["better", "every"] = "better"
    passages: Count = 6  #: maximum number of distinct passages of all rounds together (RP in the paper)
    passages_per_round: Count = 3
    query_characters: Count | None = None  #: maximum number of characters of a search query; None for no limit
    note_tokens: Count = 96
    question_tokens: Count = 48  #: maximum number of tokens of the two new questions together
    prompts: PromptSource = "ours"

    presets: ClassVar = preset_table(
        "max_tokens style updates passages passages_per_round query_characters note_tokens question_tokens prompts",
        paper=(1280, "short", 3, 15, 5, 500, 1280, 1280, "paper"),
        chat=(512, "long", 2, 10, 4, 500, 512, 128, "ours"),
    )
    later: ClassVar = {"prompts": "ours"}


class AdaptiveNote(PromptedArm[AdaptiveNoteParams]):
    """Writes a note on the passages of a search, and updates it. A reader answers from the note (Wang et al. 2024).

    An update asks the model for two new questions, searches once with both and the original question, and extends the
    note with the new passages. The new note is kept only if a comparison finds it clearly better, unless `keep` is
    "every". Stop reasons: "max_rounds" (`updates` are used up), "max_passages", "failed_updates" (`failures` updates
    did not improve the note; never if `keep` is "every"), "no_new_question", and "budget_rounds" or "budget_passages"
    if the budget allows less than the params.

    Differences to the authors' code: passages seen before are always left out, not only near the cap; an update without
    a new passage, or with an unchanged note, fails without a comparison; no new question is searched twice (the authors
    only ask for that in the prompt); a verdict that cannot be parsed means that the new note is not better, and is a
    "parse_failed" in the trace; queries have no question words unless `prompts` is "paper"; decoding is greedy, not at
    temperature 0.1.
    """

    arm: ClassVar[str] = "adaptive_note"
    example: ClassVar = {"query_characters": 60}
    kind = AdaptiveNoteParams
    package = __package__
    prompts: ClassVar = {
        "note_first": "note_first",
        "ask": "note_questions",
        "note_extend": "note_extend",
        "note_compare": "note_compare",
        "read": "read_notes_{style}",
    }
    paper_prompts: ClassVar = {
        "note_first": "paper_note_first{_news}",
        "ask": "paper_note_questions{_news}",
        "note_extend": "paper_note_extend{_news}",
        "note_compare": "paper_note_compare{_news}",
        "read": "paper_read_notes_{style}",
    }

    async def answer(self, question: str, *, run: Run) -> Answer:
        pool = PassagePool(cap=run.passage_cap(self._params.passages))
        note, stop_reason = await self._take_notes(question, run=run, pool=pool)
        run.note_branch("notes_ended", stop_reason)
        fields = {"question": question, "notes": note or "none"}
        return make_answer(await self._read(question, run=run, fields=fields), stop_reason)

    async def _take_notes(self, question: str, *, run: Run, pool: PassagePool) -> tuple[str, str]:
        params = self._params
        earlier: list[str] = []
        failures = 0
        if not run.begin_round(cap=1 + params.updates):
            return "", "budget_rounds"
        note = await self._first_note(question, run=run, pool=pool)
        for _ in range(params.updates):
            if len(pool.passages) >= pool.cap:
                return note, "max_passages" if pool.cap == params.passages else "budget_passages"
            if not run.may_begin_round(cap=1 + params.updates):
                return note, "budget_rounds"
            new_questions = await self._new_questions(question, note=note, earlier=earlier, run=run)
            if not new_questions:
                return note, "no_new_question"
            run.begin_round(cap=1 + params.updates)
            earlier.extend(new_questions)
            new_passages = await self._search([*new_questions, question], run=run, pool=pool)
            better = await self._extend_note(question, note=note, passages=new_passages, run=run)
            if better is not None:
                note = run.draft = better
                continue
            failures += 1
            if failures >= params.failures and params.keep == "better":
                return note, "failed_updates"
        return note, "max_rounds"

    async def _first_note(self, question: str, *, run: Run, pool: PassagePool) -> str:
        await gather(run, query=question, pool=pool, k=self._params.passages_per_round, clean=not self._from_paper)
        if not pool.passages:
            run.note_branch("first_note_skipped", "there is no passage")
            return ""
        note = await self._write_note("note_first", question, note=None, passages=pool.passages, run=run)
        run.draft = note or None
        return note

    async def _new_questions(self, question: str, *, note: str, earlier: Sequence[str], run: Run) -> list[str]:
        """Ask for at most two questions that neither the model nor the user has asked before."""
        fields = {"question": question, "note": note or "none", "asked": " ".join(earlier) or "none"}
        done = await self._ask("ask", fields, run=run, max_tokens=self._params.question_tokens)
        proposed = parse_items(done.text, most=2)
        if not proposed:
            run.note_branch("parse_failed", "ask: no question")
        known_questions = {text.casefold() for text in (question, *earlier)}
        repeated = [text for text in proposed if text.casefold() in known_questions]
        for text in repeated:
            run.note_branch("question_repeated", text)
        return [text for text in proposed if text not in repeated]

    async def _search(self, questions: Sequence[str], *, run: Run, pool: PassagePool) -> Sequence[Passage]:
        query, limit = "\n".join(questions), self._params.query_characters
        if limit is not None and len(query) > limit:
            run.note_branch("query_cut", f"to {limit} of {len(query)} characters")
            query = query[:limit]
        earlier_count = len(pool.passages)
        await gather(run, query=query, pool=pool, k=self._params.passages_per_round, clean=not self._from_paper)
        return pool.passages[earlier_count:]

    async def _extend_note(self, question: str, *, note: str, passages: Sequence[Passage], run: Run) -> str | None:
        """Extend the note with the new passages. Returns None if the new note is not clearly better."""
        if not passages:
            run.note_branch("update", "failed: no new passage")
            return None
        new = await self._write_note("note_extend", question, note=note, passages=passages, run=run)
        if new in ("", note):
            run.note_branch("update", "failed: nothing added")
            return None
        # Any note is better than an empty one, without a comparison.
        better = not note or self._params.keep == "every" or await self._is_better(question, old=note, new=new, run=run)
        run.note_branch("update", "accepted" if better else "failed: not better")
        return new if better else None

    async def _write_note(
        self, step: str, question: str, *, note: str | None, passages: Sequence[Passage], run: Run
    ) -> str:
        fields = {"question": question} | ({} if note is None else {"note": note or "none"})
        done = await self._ask(step, fields, run=run, max_tokens=self._params.note_tokens, passages=passages)
        return " ".join(done.text.split())

    async def _is_better(self, question: str, *, old: str, new: str, run: Run) -> bool:
        fields = {"question": question, "old": old, "new": new}
        done = await self._ask("note_compare", fields, run=run, max_tokens=24)  # {"status": true} with some words
        better = parse_yes_no(done.text.rpartition("status")[2])  # text before "status" is not the verdict
        if better is None:
            run.note_branch("parse_failed", f"note_compare: {done.text.strip()[:80]!r}")
        return better is True
