"""Adaptive-Note: a note that grows by retrieval until it stops getting better (Wang et al. 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ragbandit.strategies.arm_parts.params import Count, PassageParams, Whole, preset_table
from ragbandit.strategies.arm_parts.prompted import PromptedArm
from ragbandit.strategies.arm_parts.steps import AnswerStyle, gather, stop_reason
from ragbandit.strategies.base import Passage
from ragbandit.strategies.prompting.passages import PassagePool, parsed_items, parsed_json, parsed_yes_no
from ragbandit.strategies.run import Answer, Run

#: enough for {"status": true}, and for a model that puts a few words before it
_VERDICT_TOKENS = 24
_QUESTIONS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveNoteParams(PassageParams):
    """Settings of adaptive_note."""

    #: "small" is for local models of a few hundred million parameters; "paper" has Adaptive-Note's numbers;
    #: "chat" is for large chat models
    preset: Literal["small", "paper", "chat"] = "small"
    #: of the final reader
    style: AnswerStyle = "short"
    #: updates of the note that are tried (the paper's CI)
    updates: Whole = 2
    #: failed updates that end the arm (the paper's IU)
    failures: Count = 1
    #: distinct passages over all rounds (the paper's RP)
    passages: Count = 6
    #: whether passages of a rejected note count as well
    count_rejected: bool = True
    #: passages searched for in each round
    passages_per_round: Count = 3
    #: characters of a search with new questions; None is all
    query_characters: Count | None = None
    #: tokens of a note
    note_tokens: Count = 96
    #: tokens of the two new questions
    question_tokens: Count = 48

    presets: ClassVar = preset_table(
        "max_tokens style updates passages passages_per_round query_characters note_tokens question_tokens",
        paper=(1280, "short", 3, 15, 5, 500, 1280, 1280),
        chat=(512, "long", 2, 10, 4, 500, 512, 128),
    )


class AdaptiveNote(PromptedArm[AdaptiveNoteParams]):
    """A first note on the question's passages, then updates; a reader answers from the best note and the question.

    An update asks for two new questions, searches once with both and the question, extends the note by what the new
    passages add, and keeps the new note only if a comparison finds it clearly better. Updates end when `updates`
    were tried ("max_rounds", or "budget_rounds" where the budget's cap was the smaller), when `failures` of them
    did not better the note ("failed_updates"), when `passages` are gathered ("max_passages" or "budget_passages"),
    or when the model has no question that was not asked before ("no_new_question"). Steps: one and the updates
    begun. A budget without a round leaves the reader alone with the question. The draft is the best note until the
    reader has answered.

    What differs from the authors' code: passages seen before are always left out, not only near the cap; an update
    that finds no new passage, or adds nothing to the note, has failed without a comparison; no question is searched
    twice, the user's own included, which the authors only ask for in the prompt; line breaks in a note become
    spaces instead of fusing words; a verdict that cannot be read counts as no ("parse_failed" in the trace);
    question words are not searched for; greedy, not temperature 0.1.
    """

    kind = AdaptiveNoteParams
    prompts: ClassVar = {
        "note_first": "note_first",
        "ask": "note_questions",
        "note_extend": "note_extend",
        "note_compare": "note_compare",
        "read": "read_notes_{style}",
    }

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Take notes, then answer from them."""
        pool = PassagePool(cap=run.passage_cap(self._params.passages))
        note, ended = await self._take_notes(question, run=run, pool=pool)
        run.note_branch("notes_ended", ended)
        fields = {"question": question, "notes": note or "none"}
        answer = await self._read(question, run=run, style=self._params.style, fields=fields)
        return Answer(text=answer, stop_reason=stop_reason(answer, otherwise=ended))

    async def _take_notes(self, question: str, *, run: Run, pool: PassagePool) -> tuple[str, str]:
        """The best note and the rule that ended the updates."""
        params, earlier, failures, rejected = self._params, list[str](), 0, 0
        if not run.begin_round(cap=1 + params.updates):
            return "", "budget_rounds"
        note = await self._first_note(question, run=run, pool=pool)
        for _ in range(params.updates):
            if len(pool.passages) >= pool.cap:
                return note, "max_passages" if pool.cap == params.passages + rejected else "budget_passages"
            if not run.begin_round(cap=1 + params.updates):
                return note, "budget_rounds"
            new_questions = await self._new_questions(question, note=note, earlier=earlier, run=run)
            if not new_questions:
                return note, "no_new_question"
            earlier.extend(new_questions)
            new_passages = await self._search([*new_questions, question], run=run, pool=pool)
            better = await self._extended(question, note=note, passages=new_passages, run=run, pool=pool)
            if better is not None:
                note = run.draft = better
                continue
            failures += 1
            if failures >= params.failures:
                return note, "failed_updates"
            if not params.count_rejected:
                rejected += len(new_passages)
                pool.cap = run.passage_cap(params.passages + rejected)
        return note, "max_rounds"

    async def _first_note(self, question: str, *, run: Run, pool: PassagePool) -> str:
        await gather(run, query=question, pool=pool, k=self._params.passages_per_round)
        if not pool.passages:
            run.note_branch("first_note_skipped", "there is no passage")
            return ""
        note = await self._write_note("note_first", question, note=None, passages=pool.passages, run=run, pool=pool)
        run.draft = note or None
        return note

    async def _new_questions(self, question: str, *, note: str, earlier: Sequence[str], run: Run) -> list[str]:
        """At most two that were not asked before, by the user neither."""
        fields = {"question": question, "note": note or "none", "asked": " ".join(earlier) or "none"}
        done = await self._ask("ask", fields, run=run, max_tokens=self._params.question_tokens)
        proposed = parsed_items(done.text, most=_QUESTIONS)
        if not proposed:
            run.note_branch("parse_failed", "ask: no question")
        known = {each.casefold() for each in (question, *earlier)}
        repeated = [each for each in proposed if each.casefold() in known]
        for each in repeated:
            run.note_branch("question_repeated", each)
        return [each for each in proposed if each not in repeated]

    async def _search(self, questions: Sequence[str], *, run: Run, pool: PassagePool) -> Sequence[Passage]:
        """The passages that came in new."""
        query, most = "\n".join(questions), self._params.query_characters
        if most is not None and len(query) > most:
            run.note_branch("query_cut", f"to {most} of {len(query)} characters")
            query = query[:most]
        held = {passage.id for passage in pool.passages}
        await gather(run, query=query, pool=pool, k=self._params.passages_per_round)
        return [passage for passage in pool.passages if passage.id not in held]

    async def _extended(
        self, question: str, *, note: str, passages: Sequence[Passage], run: Run, pool: PassagePool
    ) -> str | None:
        """The note with what the new passages add, None if that is no clear gain."""
        if not passages:
            run.note_branch("update", "failed: no new passage")
            return None
        new = await self._write_note("note_extend", question, note=note, passages=passages, run=run, pool=pool)
        if new in ("", note):
            run.note_branch("update", "failed: nothing added")
            return None
        # Any note is better than none.
        better = not note or await self._is_better(question, old=note, new=new, run=run)
        run.note_branch("update", "accepted" if better else "failed: not better")
        return new if better else None

    async def _write_note(
        self, step: str, question: str, *, note: str | None, passages: Sequence[Passage], run: Run, pool: PassagePool
    ) -> str:
        fields = {"question": question} | ({} if note is None else {"note": note or "none"})
        done = await self._ask(step, fields, run=run, max_tokens=self._params.note_tokens, passages=passages, pool=pool)
        return " ".join(done.text.split())

    async def _is_better(self, question: str, *, old: str, new: str, run: Run) -> bool:
        fields = {"question": question, "old": old, "new": new}
        done = await self._ask("note_compare", fields, run=run, max_tokens=_VERDICT_TOKENS)
        status = (parsed_json(done.text) or {}).get("status")
        better = status if isinstance(status, bool) else parsed_yes_no(done.text)
        if better is None:
            run.note_branch("parse_failed", f"note_compare: {done.text.strip()[:80]!r}")
        return better is True
