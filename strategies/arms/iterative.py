import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ragbandit.strategies.arms.prompted import Count, PassageParams, PromptedArm, ReaderParams, Whole, preset_table
from ragbandit.strategies.arms.steps import AnswerStyle, finished, gather, gather_once
from ragbandit.strategies.base import Completion, Passage, PromptTooLong
from ragbandit.strategies.prompting.passages import (
    PassagePool,
    extract_answer,
    has_answer,
    parsed_items,
    parsed_yes_no,
    sentences_in,
)
from ragbandit.strategies.run import Answer, Run

_ACTION_LINE = re.compile(r"\baction\s*+(?:\d++\s*+)?:", re.IGNORECASE)
_ACTION = re.compile(r"[\s\"'`*]*(?P<verb>[A-Za-z]\w*)\s*(?:\[(?P<square>[^\n]*)|\((?P<round>[^\n]*))")
_NEXT_TURN = ("\nObservation", "\nQuestion")  #: stop strings: the arm writes these lines, not the model
_ALLOWED = "Write search[topic], lookup[word] or finish[answer]."


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    verb: str  #: name of the action in lower case, which the arm may not know
    argument: str  #: text in the brackets, without its quotes; may be empty


def parsed_action(text: str) -> Action | None:
    """Parse the action at the start of a text, for example "search[Jaws]" or "search(Jaws)". None without an action."""
    match = _ACTION.match(text)
    if match is None:
        return None
    inside, closing = (match["round"], ")") if match["square"] is None else (match["square"], "]")
    end = inside.rfind(closing)
    argument = (inside if end < 0 else inside[:end]).strip().strip("\"'`").strip()
    return Action(verb=match["verb"].lower(), argument=argument)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReactParams(ReaderParams):
    #: "paper" has ReAct's numbers. With "chat" the reader writes a paragraph, but an answer in finish[...] stays short
    preset: Literal["small", "paper", "chat"] = "small"
    #: source of the answer if the turns end without finish[...]. "read": a reader answers from the passages. "thought":
    #: the latest thought is the answer. "nothing": the answer is empty, as in the paper
    unfinished: Literal["read", "thought", "nothing"] = "read"
    turns: Count = 4
    passages_per_search: Count = 3
    passages: Count = 8  #: maximum number of passages kept in all searches together; passages found later are dropped
    sentences: Count = 2  #: maximum number of sentences of the best passage that the model sees after a search
    turn_tokens: Count = 64

    presets: ClassVar = preset_table(
        "max_tokens style turns passages_per_search passages sentences turn_tokens",
        paper=(100, "direct", 7, 5, 35, 5, 100),
        chat=(512, "long", 6, 4, 20, 4, 200),
    )


class React(PromptedArm[ReactParams]):
    """Writes thoughts and actions in turns; every action is answered by an observation (Yao et al. 2023, ReAct).

    search[topic] shows the first sentences of the best passage and the titles of the others. A passage whose title is
    the topic counts as the best. lookup[word] shows the next sentence with the word in the passages found so far.
    finish[answer] ends the arm. If a turn has no action, one more call asks only for the action; each call without an
    action is a "parse_failed" in the trace. Only a search is a step. If the turns end without finish[...], the param
    `unfinished` chooses the answer. Stop reasons: "finished", "max_turns", "no_action" after two turns in a row without
    an action, "budget_rounds" if the budget does not allow another search, "empty_answer".

    Differences to the paper's code: an empty action does not crash; lookup reads all passages found, not only the
    latest; if the turns exceed the model's context, the oldest are dropped; if the turns end without finish[...], a
    reader may answer.
    """

    kind = ReactParams
    prompts: ClassVar = {"step": "react_step", "read": "read_{style}"}

    async def answer(self, question: str, *, run: Run) -> Answer:
        library = _Library(pool=PassagePool(cap=run.passage_cap(self._params.passages)))
        turns: list[str] = []
        stop_reason, unreadable = "max_turns", 0
        while len(turns) < self._params.turns:
            thought, action = await self._think(question, turns=turns, run=run)
            run.draft = (extract_answer(thought) if has_answer(thought) else thought) or run.draft
            if action is not None and action.verb == "finish" and action.argument:
                return finished(extract_answer(action.argument), "finished")
            unreadable = unreadable + 1 if action is None else 0
            if unreadable > 1:
                stop_reason = "no_action"
                break
            observation = await self._observe(action, run=run, library=library)
            if observation is None:
                stop_reason = "budget_rounds"
                break
            turns.append(_turn(len(turns) + 1, thought=thought, action=action, observation=observation))
        run.note_branch("turns_ended", stop_reason)
        return await self._answer_unfinished(question, stop_reason=stop_reason, run=run, library=library)

    async def _think(self, question: str, *, turns: Sequence[str], run: Run) -> tuple[str, Action | None]:
        start = f"Thought {len(turns) + 1}:"
        done = await self._continue(question, turns=turns, start=start, purpose="think", run=run, stop=_NEXT_TURN)
        line = _ACTION_LINE.search(done.text)
        written = done.text[: line.start()] if line else done.text
        thought = next((text_line.strip() for text_line in written.splitlines() if text_line.strip()), "")
        action = parsed_action(done.text[line.end() :]) if line else None
        if action is None:
            run.note_branch("parse_failed", f"no action in: {done.text[:200]}")
            start = f"{start} {thought}\nAction {len(turns) + 1}:"
            done = await self._continue(question, turns=turns, start=start, purpose="repair", run=run, stop=("\n",))
            action = parsed_action(done.text)
            if action is None:
                run.note_branch("parse_failed", f"no action in: {done.text[:200]}")
        return thought, action

    async def _continue(
        self, question: str, *, turns: Sequence[str], start: str, purpose: str, run: Run, stop: tuple[str, ...]
    ) -> Completion:
        """Let the model continue the turns. The oldest turns are dropped if not all fit the model's context."""
        options: dict[str, Any] = {"purpose": purpose, "max_tokens": self._params.turn_tokens, "stop": stop}
        for first in range(len(turns) + 1):
            fields = {"question": question, "transcript": "\n".join(turns[first:]), "start": start}
            try:
                return await self._ask("step", fields, run=run, conversation=True, **options)
            except PromptTooLong:
                if first == len(turns):
                    raise
                run.note_branch("prompt_budget", f"turn {first + 1} of {len(turns)} dropped")
        raise AssertionError("unreachable: the prompt without turns fits, or PromptTooLong is raised above")

    async def _observe(self, action: Action | None, *, run: Run, library: "_Library") -> str | None:
        """Do the action. Returns the observation; None if the budget allows no further search."""
        if action is None or action.verb not in ("search", "lookup", "finish"):
            run.note_branch("unknown_action", "none" if action is None else action.verb)
            return f"That is no action. {_ALLOWED}"
        if not action.argument:
            run.note_branch("empty_action", action.verb)
            return f"There is nothing in the brackets. {_ALLOWED}"
        if action.verb == "lookup":
            return library.look_up(action.argument, run=run)
        if not run.begin_round(cap=self._params.turns):
            return None
        return await self._search(action.argument, run=run, library=library)

    async def _search(self, topic: str, *, run: Run, library: "_Library") -> str:
        passages = await gather(run, query=topic, pool=library.pool, k=self._params.passages_per_search)
        if not passages:
            return f"The library has nothing new on {topic}."
        best = next((passage for passage in passages if passage.title.casefold() == topic.casefold()), passages[0])
        run.note_shown([best])
        sentences = sentences_in(best.text)[: self._params.sentences]
        others = dict.fromkeys(passage.title for passage in passages if passage.title != best.title)
        return f"{best.title}: {' '.join(sentences)}" + (f" (See also: {'; '.join(others)})" if others else "")

    async def _answer_unfinished(self, question: str, *, stop_reason: str, run: Run, library: "_Library") -> Answer:
        if self._params.unfinished == "nothing":
            return Answer(text="", stop_reason=stop_reason)
        if self._params.unfinished == "thought":
            return finished(run.draft or "", stop_reason)
        if not library.pool.passages:
            k, cap = self._params.passages_per_search, self._params.turns + 1
            await gather_once(run, query=question, pool=library.pool, k=k, cap=cap)
        return finished(await self._read(question, run=run, pool=library.pool), stop_reason)


@dataclass(kw_only=True, slots=True)
class _Library:
    """The passages found for a question, with the position of lookup[...] in them."""

    pool: PassagePool
    _term: str = ""
    _shown: int = 0  #: number of sentences with `_term` that were shown

    def look_up(self, term: str, *, run: Run) -> str:
        """The next sentence that contains the term, ignoring case. A new term is searched from the first passage."""
        if term.casefold() != self._term:
            self._term, self._shown = term.casefold(), 0
        matches = [
            (passage, sentence)
            for passage in self.pool.passages
            for sentence in sentences_in(passage.text)
            if self._term in sentence.casefold()
        ]
        if self._shown >= len(matches):
            return f"No {'more ' if matches else ''}sentence has the word {term}."
        passage, sentence = matches[self._shown]
        self._shown += 1
        run.note_shown([passage])
        return f"{passage.title}: {sentence} (sentence {self._shown} of {len(matches)})"


def _turn(number: int, *, thought: str, action: Action | None, observation: str) -> str:
    written = "" if action is None else f"Action {number}: {action.verb}[{action.argument}]\n"
    # The observation becomes one line: a title with a line break could look like a turn of the model.
    return f"Thought {number}: {thought}\n{written}Observation {number}: {' '.join(observation.split())}"


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

    presets: ClassVar = preset_table(
        "max_tokens style updates passages passages_per_round query_characters note_tokens question_tokens",
        paper=(1280, "short", 3, 15, 5, 500, 1280, 1280),
        chat=(512, "long", 2, 10, 4, 500, 512, 128),
    )


class AdaptiveNote(PromptedArm[AdaptiveNoteParams]):
    """Writes a note on the passages of a search, and updates it. A reader answers from the note (Wang et al. 2024).

    An update asks the model for two new questions, searches once with both and the original question, and extends the
    note with the new passages. The new note is kept only if a comparison finds it clearly better, unless `keep` is
    "every". Stop reasons: "max_rounds" (`updates` are used up), "max_passages", "failed_updates" (`failures` updates
    did not improve the note), "no_new_question", and "budget_rounds" or "budget_passages" if the budget allows less
    than the params.

    Differences to the authors' code: passages seen before are always left out, not only near the cap; an update without
    a new passage, or with an unchanged note, fails without a comparison; no question is searched twice (the authors
    only ask for that in the prompt); a verdict that cannot be parsed means that the new note is not better, and is a
    "parse_failed" in the trace; queries have no question words; decoding is greedy, not at temperature 0.1.
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
        pool = PassagePool(cap=run.passage_cap(self._params.passages))
        note, stop_reason = await self._take_notes(question, run=run, pool=pool)
        run.note_branch("notes_ended", stop_reason)
        fields = {"question": question, "notes": note or "none"}
        return finished(await self._read(question, run=run, fields=fields), stop_reason)

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
            better = await self._extended(question, note=note, passages=new_passages, run=run)
            if better is not None:
                note = run.draft = better
                continue
            failures += 1
            if failures >= params.failures and params.keep == "better":
                return note, "failed_updates"
        return note, "max_rounds"

    async def _first_note(self, question: str, *, run: Run, pool: PassagePool) -> str:
        await gather(run, query=question, pool=pool, k=self._params.passages_per_round)
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
        proposed = parsed_items(done.text, most=2)
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
        await gather(run, query=query, pool=pool, k=self._params.passages_per_round)
        return pool.passages[earlier_count:]

    async def _extended(self, question: str, *, note: str, passages: Sequence[Passage], run: Run) -> str | None:
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
        better = parsed_yes_no(done.text.rpartition("status")[2])  # text before "status" is not the verdict
        if better is None:
            run.note_branch("parse_failed", f"note_compare: {done.text.strip()[:80]!r}")
        return better is True
