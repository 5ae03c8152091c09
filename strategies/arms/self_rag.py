"""Self-RAG, prompted: search, grade the passages, answer, grade the answer, and try again where a grade is bad."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ragbandit.strategies.arm_parts.params import Count, ReaderParams, Whole, preset_table
from ragbandit.strategies.arm_parts.prompted import PromptedArm
from ragbandit.strategies.arm_parts.steps import gather, stop_reason
from ragbandit.strategies.base import Hit, Passage
from ragbandit.strategies.prompting.parsing import parsed_yes_no
from ragbandit.strategies.prompting.passages import PassagePool
from ragbandit.strategies.run import Answer, Run


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfRagParams(ReaderParams):
    """Settings of self_rag."""

    #: "small" is for local models of a few hundred million parameters; "paper" has the caps of the prompted
    #: graph that the Adaptive-Note paper compares with, which had none of its own; "chat" is for large chat models
    preset: Literal["small", "paper", "chat"] = "small"
    #: rewritten questions, whatever the reason
    rewrites: Whole = 1
    #: further answers of one round, while the passages do not support the one at hand
    regenerations: Whole = 1
    #: passages searched for in each round
    passages_per_round: Count = 3
    #: passages graded over all rounds
    passages: Count = 6
    #: tokens of one grade
    grade_tokens: Count = 6
    #: tokens of a rewritten question
    query_tokens: Count = 32

    presets: ClassVar = preset_table(
        "max_tokens style rewrites regenerations passages_per_round passages grade_tokens query_tokens",
        paper=(300, "reasoned", 3, 2, 4, 16, 16, 64),
        chat=(512, "long", 1, 1, 4, 12, 16, 64),
    )


class SelfRag(PromptedArm[SelfRagParams]):
    """The reflections of Self-RAG (Asai et al. 2023) as questions to any model, wired as its prompted graphs are.

    A round searches and grades every passage that is new. Where one is relevant the model answers from all relevant
    passages, and answers again, told what was rejected, while a grader finds the answer unsupported. A supported
    answer that settles the original question ends the arm ("answered"); otherwise the question is rewritten for the
    next round. Without a good answer the latest one is given, when the rewrites are used up ("max_rewrites"), the
    budget's rounds are ("budget_rounds"), no passage may be graded any more ("max_passages"), or the rewriting
    brought no new query ("no_new_query"). If no passage was relevant the model answers without any
    ("no_relevant_passage"); an answer without words is "empty_answer".

    A grade that is neither yes nor no is counted as "parse_failed" and taken for yes, so that a model that cannot
    grade works like single_step. Calls follow one another, so that the caps of the budget hold exactly. Differences
    to those graphs: every loop is capped, graders see the question as it was asked, a passage is graded once, and
    relevant passages stay for later rounds. This is not the trained Self-RAG: compare no numbers. A model that
    cannot grade and says no, as one of 135M parameters did, ends up answering from memory.
    """

    kind = SelfRagParams
    prompts: ClassVar = {
        "read": "read_{style}",
        "relevant": "self_rag_relevant",
        "supported": "self_rag_supported",
        "useful": "self_rag_useful",
        "rewrite": "self_rag_rewrite",
    }

    def _template_names(self) -> dict[str, str]:
        again = "self_rag_again_long" if self._params.style == "long" else "self_rag_again"
        return super()._template_names() | {"read_again": again}

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Go round until the graders are content."""
        graded = PassagePool(cap=run.passage_cap(self._params.passages))
        relevant = PassagePool(cap=graded.cap)
        draft = ""
        tried: list[str] = []
        while (ended := await self._begin_round(question, tried=tried, run=run, graded=graded)) is None:
            if await self._find(question, query=tried[-1], run=run, graded=graded, relevant=relevant):
                written, supported = await self._write(question, run=run, relevant=relevant)
                draft = written or draft
                if supported and await self._grade("useful", {"question": question, "answer": written}, run=run):
                    return Answer(text=written, stop_reason="answered")
        run.note_branch("rounds_ended", ended)
        if not relevant.passages:
            draft = await self._read(question, run=run, style=self._params.style, pool=relevant)
            ended = "no_relevant_passage" if tried else ended
        return Answer(text=draft, stop_reason=stop_reason(draft, otherwise=ended))

    async def _begin_round(self, question: str, *, tried: list[str], run: Run, graded: PassagePool) -> str | None:
        """The reason why no round can begin; None if one has begun, its query being the last of `tried`."""
        if len(graded.passages) >= graded.cap:
            return "max_passages"
        if len(tried) > self._params.rewrites:
            return "max_rewrites"
        if not run.begin_round(cap=self._params.rewrites + 1):
            return "budget_rounds"
        query = await self._rewrite(question, tried=tried, run=run) if tried else question
        if query.casefold() in {each.casefold() for each in tried}:
            return "no_new_query"
        tried.append(query)
        return None

    async def _rewrite(self, question: str, *, tried: Sequence[str], run: Run) -> str:
        """Another query; the last one where the model wrote none."""
        fields = {"question": question, "tried": "; ".join(tried)}
        done = await self._ask("rewrite", fields, run=run, max_tokens=self._params.query_tokens, stop=("\n",))
        query = done.text.strip().strip("\"'`").strip()
        if not query:
            run.note_branch("parse_failed", f"no query in: {done.text[:200]}")
        return query or tried[-1]

    async def _find(
        self, question: str, *, query: str, run: Run, graded: PassagePool, relevant: PassagePool
    ) -> tuple[str, ...]:
        """Search and grade; the ids of the new relevant passages, which are in the pool then."""
        before = len(graded.passages)
        await gather(run, query=query, pool=graded, k=self._params.passages_per_round)
        added: list[str] = []
        for passage in graded.passages[before:]:
            if await self._grade("relevant", {"question": question}, run=run, pool=graded, about=passage):
                added.extend(relevant.add([Hit(passage=passage, score=0.0)]).added)
        return tuple(added)

    async def _write(self, question: str, *, run: Run, relevant: PassagePool) -> tuple[str, bool]:
        """An answer from the relevant passages, and whether they support it; "" if the model said nothing usable."""
        style = self._params.style
        answer = await self._read(question, run=run, style=style, pool=relevant, final=False)
        rejected: list[str] = []
        while answer:
            if answer in rejected:
                run.note_branch("answer_repeated", answer)
                return answer, False
            if await self._grade("supported", {"question": question, "answer": answer}, run=run, pool=relevant):
                return answer, True
            rejected.append(answer)
            if len(rejected) > self._params.regenerations:
                return answer, False
            fields = {"question": question, "rejected": "; ".join(rejected)}
            answer = await self._read(
                question, run=run, style=style, use="read_again", fields=fields, pool=relevant, final=False
            )
        return (rejected[-1] if rejected else ""), False

    async def _grade(
        self,
        grade: str,
        fields: Mapping[str, str],
        *,
        run: Run,
        pool: PassagePool | None = None,
        about: Passage | None = None,
    ) -> bool:
        """The verdict of one grader, yes where it cannot be read; on one passage of the pool, or on the answer."""
        done = await self._ask(
            grade,
            fields,
            run=run,
            purpose=f"grade_{grade}",
            max_tokens=self._params.grade_tokens,
            pool=pool,
            passages=None if about is None else [about],
            stop=("\n",),
        )
        verdict = parsed_yes_no(done.text)
        if verdict is None:
            run.note_branch("parse_failed", f"no {grade} grade in: {done.text[:200]}")
            return True
        run.note_branch(grade, f"{'answer' if about is None else about.id}: {'yes' if verdict else 'no'}")
        return verdict
