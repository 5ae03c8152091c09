from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ragbandit.additions.research_arms.replies import parse_items, parse_label
from ragbandit.shared.texts.text_forms import answer_words
from ragbandit.strategies.arm_parts.prompted import Count, PromptedArm, ReaderParams, preset_table
from ragbandit.strategies.arm_parts.steps import answer_in, gather, keep_partial, make_answer, mean_logprob, stops_of
from ragbandit.strategies.base import Need, Passage
from ragbandit.strategies.prompting.passages import PassagePool
from ragbandit.strategies.run import Answer, Run

_REFINEMENTS = ("rewrite", "decompose", "disambiguate")
_ACTIONS = (*_REFINEMENTS, "answer")

Choice = Literal["vote", "confidence"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RqRagParams(ReaderParams):
    preset: Literal["small", "paper", "chat"] = "small"
    tree: bool = False  #: True to refine the question in all three ways at every step, False to follow one path
    #: answer of a tree: the most frequent answer ("vote"), or the answer with the most probable tokens ("confidence")
    choose: Choice = "vote"
    depth: Count = 1  #: maximum number of refinements on a path
    queries: Count = 3  #: maximum number of queries of a decomposition or disambiguation
    passages_per_query: Count = 2
    passages: Count = 6  #: maximum number of passages kept in all searches together; passages found later are dropped
    decide_tokens: Count = 6
    query_tokens: Count = 64

    presets: ClassVar = preset_table(
        "max_tokens style depth passages_per_query passages decide_tokens query_tokens",
        paper=(100, "direct", 2, 3, 36, 16, 100),
        chat=(512, "long", 2, 3, 12, 16, 100),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PathAnswer:
    answer: str  #: "" if the model's text has no answer
    confidence: float  #: mean log-probability of the text's tokens; -inf if the generator returned none


@dataclass(frozen=True, kw_only=True, slots=True)
class _Node:
    """A node of the tree. Queries and passages are collected along the path to the node."""

    queries: tuple[str, ...] = ()
    passages: tuple[Passage, ...] = ()
    depth: int = 0


class RqRag(PromptedArm[RqRagParams]):
    """Refines the question and searches until the model decides to answer (RQ-RAG, Chan et al. 2024).

    The model chooses the next action: rewrite the question, decompose it, disambiguate it, or answer. A rewrite gives
    one query, the other refinements give up to `queries`. At the end of the path a reader answers from all passages of
    the path. Stop reasons: "answer_decided" by the model, "max_depth" after `depth` refinements, "budget_rounds",
    "no_new_query" from a refinement, "empty_answer".

    With `tree` the model answers at every node, and refines the question there in all three ways, breadth first. At
    depth 2 this gives 1 + 3 + 9 answers. A refinement without a new query is left out. The tree ends with "max_depth"
    or "budget_rounds", and `choose` selects the answer. The cap on passages applies to the whole tree.

    A decision that cannot be parsed becomes a rewrite, and is "parse_failed" in the trace. Differences to the paper:
    prompts replace the trained model; queries are decoded greedily, not sampled at temperature 1; one call writes all
    parts or meanings of a question, not one query at a time; a vote counts the paths, while the paper adds up
    confidences.
    """

    arm: ClassVar[str] = "rq_rag"
    kind = RqRagParams
    package = __package__
    prompts: ClassVar = {
        "read": "read_{style}",
        "decide": "rq_rag_decide",
        **{refinement: f"rq_rag_{refinement}" for refinement in _REFINEMENTS},
    }

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        by_confidence = self._params.tree and self._params.choose == "confidence"
        self._want: frozenset[Need] = frozenset({"logprobs"}) if by_confidence else frozenset()
        self.needs = PromptedArm.needs | self._want
        branches = len(_REFINEMENTS) if self._params.tree else 1
        self._most_rounds = sum(branches**depth for depth in range(1, self._params.depth + 1))

    async def answer(self, question: str, *, run: Run) -> Answer:
        pool = PassagePool(cap=run.passage_cap(self._params.passages))
        if self._params.tree:
            return await self._answer_by_tree(question, run=run, pool=pool)
        node, stop_reason = await self._follow_path(question, run=run, pool=pool)
        run.note_branch("path_ended", stop_reason)
        return make_answer(await self._read(question, run=run, passages=node.passages), stop_reason)

    async def _follow_path(self, question: str, *, run: Run, pool: PassagePool) -> tuple[_Node, str]:
        node = _Node()
        while node.depth < self._params.depth:
            action = await self._decide(question, node=node, run=run)
            if action == "answer":
                return node, "answer_decided"
            if not run.may_begin_round(cap=self._most_rounds):
                return node, "budget_rounds"
            child = await self._refine(question, action=action, node=node, run=run, pool=pool)
            if child is None:
                return node, "no_new_query"
            node = child
        return node, "max_depth"

    async def _answer_by_tree(self, question: str, *, run: Run, pool: PassagePool) -> Answer:
        nodes = [_Node()]
        answers = [await self._answer_node(question, node=nodes[0], run=run)]
        run.draft = answers[0].answer or None
        stop_reason = "max_depth"
        branches = ((node, action) for node in nodes for action in _REFINEMENTS)
        for node, action in branches:
            # The nodes come breadth first: if one node has the full depth, so have all nodes after it.
            if node.depth >= self._params.depth:
                break
            if not run.may_begin_round(cap=self._most_rounds):
                stop_reason = "budget_rounds"
                break
            child = await self._refine(question, action=action, node=node, run=run, pool=pool)
            if child is not None:
                nodes.append(child)
                answers.append(await self._answer_node(question, node=child, run=run))
                run.draft = choose_answer(answers, choose=self._params.choose) or run.draft
        answer = choose_answer(answers, choose=self._params.choose)
        run.note_branch("tree_ended", f"{stop_reason} with {len(answers)} answers")
        return make_answer(answer, stop_reason)

    async def _answer_node(self, question: str, *, node: _Node, run: Run) -> PathAnswer:
        # A partial answer becomes the draft only if no other path has an answer.
        with keep_partial(run, style=self._params.style) if run.draft is None else nullcontext():
            done = await self._ask(
                "read",
                {"question": question},
                run=run,
                max_tokens=self._params.max_tokens,
                passages=node.passages,
                stop=stops_of(self._params.style),
                want=self._want,
            )
        return PathAnswer(answer=answer_in(done.text, style=self._params.style), confidence=mean_logprob(done))

    async def _decide(self, question: str, *, node: _Node, run: Run) -> str:
        limit, fields = self._params.decide_tokens, {"question": question, "tried": _join_queries(node.queries)}
        done = await self._ask("decide", fields, run=run, max_tokens=limit, passages=node.passages, stop=("\n",))
        action = parse_label(done.text, labels=_ACTIONS)
        if action is None:
            run.note_branch("parse_failed", f"no action in: {done.text[:200]}")
            action = "rewrite"
        run.note_branch("decided", action)
        return action

    async def _refine(self, question: str, *, action: str, node: _Node, run: Run, pool: PassagePool) -> _Node | None:
        """Refine the question and search. Returns the new node, or None if all proposed queries were tried before."""
        limit = 1 if action == "rewrite" else self._params.queries
        fields = {"question": question, "tried": _join_queries(node.queries), "limit": str(limit)}
        done = await self._ask(
            action,
            fields,
            run=run,
            max_tokens=self._params.query_tokens,
            passages=node.passages,
            stop=("\n",) if action == "rewrite" else ("\n\n",),
        )
        proposed = parse_items(done.text, most=limit)
        if not proposed:
            run.note_branch("parse_failed", f"no query in: {done.text[:200]}")
            proposed = (question,)
        tried = {query.casefold() for query in node.queries}
        queries = tuple(query for query in proposed if query.casefold() not in tried)
        if not queries:
            run.note_branch("no_new_query", action)
            return None
        run.begin_round(cap=self._most_rounds)
        passages = list(node.passages)
        for query in queries:
            retrieved = await gather(run, query=query, pool=pool, k=self._params.passages_per_query)
            passages.extend(passage for passage in retrieved if passage not in passages)
        return _Node(queries=node.queries + queries, passages=tuple(passages), depth=node.depth + 1)


def _join_queries(queries: Sequence[str]) -> str:
    return "; ".join(queries) or "none"


def choose_answer(answers: Sequence[PathAnswer], *, choose: Choice) -> str:
    """The most confident or the most frequent answer, the last of equal answers; "" if no path has an answer."""
    candidates = [path for path in reversed(answers) if path.answer]
    votes = Counter(tuple(answer_words(path.answer)) for path in candidates)
    if not candidates:
        return ""
    if choose == "confidence":
        return max(candidates, key=lambda path: path.confidence).answer
    return max(candidates, key=lambda path: votes[tuple(answer_words(path.answer))]).answer
