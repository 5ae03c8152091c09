from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from ragbandit.additions.research_arms.replies import parse_yes_no
from ragbandit.strategies.arm_parts.prompted import (
    Count,
    PromptedArm,
    PromptSource,
    ReaderParams,
    Whole,
    preset_table,
)
from ragbandit.strategies.arm_parts.steps import gather, make_answer
from ragbandit.strategies.base import Passage
from ragbandit.strategies.prompting.passages import PassagePool
from ragbandit.strategies.run import Answer, Run


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfRagParams(ReaderParams):
    #: "paper" is the prompted Self-RAG of the Adaptive-Note paper, with caps; `PromptParams` describes the others
    preset: Literal["small", "paper", "chat"] = "small"
    rewrites: Whole = 1  #: maximum number of times that the question is rewritten
    regenerations: Whole = 1  #: maximum number of further answers in a round if the passages do not support the answer
    passages_per_round: Count = 3
    passages: Count = 6  #: maximum number of passages that are graded in all rounds together
    grade_tokens: Count = 6
    query_tokens: Count = 32
    prompts: PromptSource = "ours"  #: "paper" has the graders and the rewriter of LangChain's graph

    presets: ClassVar = preset_table(
        "max_tokens style rewrites regenerations passages_per_round passages grade_tokens query_tokens prompts",
        paper=(300, "reasoned", 3, 2, 4, 16, 16, 64, "paper"),
        chat=(512, "long", 1, 1, 4, 12, 16, 64, "ours"),
    )
    later: ClassVar = {"prompts": "ours"}


class SelfRag(PromptedArm[SelfRagParams]):
    """Asks a model without special training the reflection questions of Self-RAG (Asai et al. 2023), by prompts.

    A round searches, and grades every new passage. If there are relevant passages, the model answers from all of them.
    If a grader finds the answer unsupported, the model answers again and sees the rejected answers. A supported answer
    that settles the original question ends the arm ("answered"); otherwise the question is rewritten for the next
    round. Other stop reasons, with the latest answer: "max_rewrites", "budget_rounds", "max_passages" (no further
    passage may be graded), "no_new_query", "no_relevant_passage" (the model answers without passages), "empty_answer".

    A grade that is neither yes nor no is "parse_failed" in the trace and counts as yes, so with a model that cannot
    grade the arm works like single_step. With a model that always replies no the arm answers from memory. Differences
    to other programs that prompt Self-RAG's questions: every loop is capped, graders see the original question, a
    passage is graded once, and relevant passages are kept for later rounds. The trained Self-RAG of the paper is a
    different method, so its numbers are not comparable.
    """

    arm: ClassVar[str] = "self_rag"
    kind = SelfRagParams
    package = __package__
    prompts: ClassVar = {
        "read": "read_{style}",
        "relevant": "self_rag_relevant",
        "supported": "self_rag_supported",
        "useful": "self_rag_useful",
        "read_again": "self_rag_again{_long}",
        "rewrite": "self_rag_rewrite",
    }
    paper_prompts: ClassVar = {
        "relevant": "paper_self_rag_relevant",
        "supported": "paper_self_rag_supported",
        "useful": "paper_self_rag_useful",
        "rewrite": "paper_self_rag_rewrite",
    }

    async def answer(self, question: str, *, run: Run) -> Answer:
        graded = PassagePool(cap=run.passage_cap(self._params.passages))
        relevant: list[Passage] = []
        draft = ""
        tried: list[str] = []
        stop_reason = await self._begin_round(question, tried=tried, run=run, graded=graded)
        while stop_reason is None:
            new = await self._search_and_grade(question, query=tried[-1], run=run, graded=graded)
            relevant += new
            if new:
                answer, supported = await self._write(question, run=run, relevant=relevant)
                draft = answer or draft
                if supported and await self._grade("useful", {"question": question, "answer": answer}, run=run):
                    return Answer(text=answer, stop_reason="answered")
            stop_reason = await self._begin_round(question, tried=tried, run=run, graded=graded)
        run.note_branch("rounds_ended", stop_reason)
        if not relevant:
            draft = await self._read(question, run=run)
            stop_reason = "no_relevant_passage" if tried else stop_reason
        return make_answer(draft, stop_reason)

    async def _begin_round(self, question: str, *, tried: list[str], run: Run, graded: PassagePool) -> str | None:
        """Begin a round, and append its query to `tried`. Returns the stop reason, or None if a round has begun."""
        if len(graded.passages) >= graded.cap:
            return "max_passages"
        if len(tried) > self._params.rewrites:
            return "max_rewrites"
        cap = self._params.rewrites + 1
        if not run.may_begin_round(cap=cap):
            return "budget_rounds"
        query = await self._rewrite(question, tried=tried, run=run) if tried else question
        if query.casefold() in {text.casefold() for text in tried}:
            return "no_new_query"
        run.begin_round(cap=cap)
        tried.append(query)
        return None

    async def _rewrite(self, question: str, *, tried: Sequence[str], run: Run) -> str:
        fields = {"question": question, "tried": "; ".join(tried), "latest": tried[-1]}
        done = await self._ask("rewrite", fields, run=run, max_tokens=self._params.query_tokens, stop=("\n",))
        query = done.text.strip().strip("\"'`").strip()
        if not query:
            run.note_branch("parse_failed", f"no query in: {done.text[:200]}")
        return query or tried[-1]

    async def _search_and_grade(self, question: str, *, query: str, run: Run, graded: PassagePool) -> list[Passage]:
        earlier_count = len(graded.passages)
        k = self._params.passages_per_round
        await gather(run, query=query, pool=graded, k=k, clean=not self._from_paper)
        grade = partial(self._grade, "relevant", {"question": question}, run=run)
        new = graded.passages[earlier_count:]
        return [passage for passage in new if await grade(passages=[passage], about=passage.id)]

    async def _write(self, question: str, *, run: Run, relevant: Sequence[Passage]) -> tuple[str, bool]:
        """Answer from the relevant passages. Returns (answer or "", whether the passages support it)."""
        answer = await self._read(question, run=run, passages=relevant, final=False)
        rejected: list[str] = []
        while answer:
            if answer in rejected:
                run.note_branch("answer_repeated", answer)
                return answer, False
            if await self._grade("supported", {"question": question, "answer": answer}, run=run, passages=relevant):
                return answer, True
            rejected.append(answer)
            if len(rejected) > self._params.regenerations:
                return answer, False
            fields = {"question": question, "rejected": "; ".join(rejected)}
            answer = await self._read(
                question, run=run, use="read_again", fields=fields, passages=relevant, final=False
            )
        return (rejected[-1] if rejected else ""), False

    async def _grade(
        self,
        grade: str,
        fields: Mapping[str, str],
        *,
        run: Run,
        passages: Sequence[Passage] = (),
        about: str = "answer",
    ) -> bool:
        """Whether the model replies yes; True if the reply cannot be parsed. about: what is graded, for the trace."""
        done = await self._ask(
            grade,
            fields,
            run=run,
            purpose=f"grade_{grade}",
            max_tokens=self._params.grade_tokens,
            passages=passages,
            stop=("\n",),
        )
        verdict = parse_yes_no(done.text)
        if verdict is None:
            run.note_branch("parse_failed", f"no {grade} grade in: {done.text[:200]}")
            return True
        run.note_branch(grade, f"{about}: {'yes' if verdict else 'no'}")
        return verdict
