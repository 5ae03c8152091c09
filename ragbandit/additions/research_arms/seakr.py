import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ragbandit.additions.research_arms.lookahead import LatestPool, first_sentence_tokens, merge_words
from ragbandit.additions.research_arms.replies import is_content
from ragbandit.shared.errors import ArmFailed
from ragbandit.strategies.answer_stream import Settle
from ragbandit.strategies.arm_parts.prompted import Count, PassageParams, PromptedArm, Whole, preset_table
from ragbandit.strategies.arm_parts.steps import gather, gather_once, make_answer, run_calls
from ragbandit.strategies.base import Completion, Need, Passage, Prompt, Sampling
from ragbandit.strategies.prompting.passages import extract_answer, first_sentence, has_answer
from ragbandit.strategies.prompting.prompts import fill_prompt
from ragbandit.strategies.run import Answer, Run

#: texts that mean "no answer"; compared in lower case
_UNKNOWN = frozenset({"", "unknown", "not known", "none", "n/a", "i do not know", "i don't know"})
#: number added to every eigenvalue in `uncertainty`, which would otherwise be minus infinity for equal samples
_ALPHA = 1e-3
#: samples are drawn from the most probable tokens: at most _TOP_K, with a total probability of at least _TOP_P
_TOP_P, _TOP_K = 0.9, 50
#: a proposed word enters the query from this probability on, or if the question or the last sentence contains it
_SURE = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class SeakrParams(PassageParams):
    #: "single_hop" and "multi_hop" have the paper's numbers for LLaMA-2-7B-chat; see `PromptParams` for "small"
    preset: Literal["small", "single_hop", "multi_hop"] = "small"
    #: "single" answers from memory or from the best passage; "multi" writes a chain of sentences
    hops: Literal["single", "multi"] = "single"
    #: the arm searches if the uncertainty is above this. A good value depends on the model, the layer and `samples`;
    #: the default is not tuned: it separated a few well-known questions from obscure ones on a model of 135M parameters
    delta: float = 7.5
    #: layer whose hidden states are compared; 0 for the embedding, None for the middle layer
    layer: Whole | None = None
    samples: Annotated[int, Field(ge=2)] = 4
    temperature: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    passages: Count = 3  #: passages per search; the model reads each passage in a call of its own
    kept_passages: Count = 3  #: maximum number of passages kept with the chain's sentences; only for `hops: multi`
    sentences: Count = 3
    sentence_tokens: Count = 40
    sample_tokens: Count = 24
    max_tokens: Count = 24

    presets: ClassVar = preset_table(
        "hops delta layer samples passages kept_passages sentences sentence_tokens sample_tokens",
        single_hop=("single", -6.0, 15, 20, 10, 3, 3, 40, 100),
        multi_hop=("multi", -6.0, 15, 20, 3, 5, 7, 100, 100),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Candidate:
    text: str
    doubt: float  #: uncertainty (see `uncertainty`); infinite if fewer than two samples have text


class Seakr(PromptedArm[SeakrParams]):
    """Searches if sampled answers disagree in the model's hidden states, and prefers passages that make them agree.

    The disagreement is the doubt (see `uncertainty`; Yao et al. 2024). For `hops: single` the model answers from
    memory. If the doubt is at most `delta`, the arm takes this answer ("sure"). Otherwise the model answers from each
    passage found, and the arm takes the answer with the least doubt ("best_passage"). The arm keeps the answer from
    memory if the search has no hit ("no_passage"), or if no passage gives an answer ("no_reading").

    For `hops: multi` the model proposes a sentence. If the sentence is empty, or its doubt is above `delta`, the arm
    searches the probable words of the sentence, or the question if no word is probable ("query_fallback"). For each new
    passage the model writes the sentence again. The sentence with the least doubt is kept with its passage. At the end
    the model answers once from the sentences and once from the kept passages, and the arm takes the answer with less
    doubt. Stop reasons: "answer_found" ("answer is" in a sentence), "max_sentences", "max_passages" (`kept_passages`),
    "repeated_query", "nothing_new" (no new passage), "empty_sentence" (no passage gave a sentence), "budget_rounds",
    "empty_answer".

    Differences to the authors' code: the query is made from the whole proposed sentence; no sentence is lost if a
    search fails; the state of a sample is the hidden state of its last token, not of an end token.
    """

    arm: ClassVar[str] = "seakr"
    example: ClassVar = {"delta": -5.0, "layer": 2}
    needs: frozenset[Need] = frozenset({"completion", "stop", "logprobs", "hidden_states"})
    kind = SeakrParams
    package = __package__
    prompts: ClassVar = {
        "answer": "recall_direct",
        "read": "read_direct",
        "think": "think_reasoned",
        "conclude": "conclude",
    }

    async def answer(self, question: str, *, run: Run) -> Answer:
        pool = LatestPool(run, cap=self._params.passages)
        hop = self._answer_single_hop if self._params.hops == "single" else self._answer_multi_hop
        answer, stop_reason = await hop(question, run=run, pool=pool)
        run.draft = answer or run.draft
        return make_answer(answer, stop_reason)

    async def _answer_single_hop(self, question: str, *, run: Run, pool: LatestPool) -> tuple[str, str]:
        fields = {"question": question}
        direct = await self._read(question, run=run, use="answer")
        prompt = self._prompt("answer", fields, run=run)
        if direct and (await self._measure_doubts([prompt], purpose="answer", run=run))[0] <= self._params.delta:
            return direct, "sure"
        await gather_once(run, query=question, pool=pool, k=self._params.passages)
        if not pool.passages:
            return direct, "no_passage"
        prompts = [self._prompt("read", fields, passages=[passage], run=run) for passage in pool.passages]
        answers = await self._candidates(prompts, purpose="read", run=run, settle=extract_answer)
        best = _index_of_least_doubt(answers)
        return (direct, "no_reading") if best is None else (answers[best].text, "best_passage")

    async def _answer_multi_hop(self, question: str, *, run: Run, pool: LatestPool) -> tuple[str, str]:
        sentences: list[str] = []
        evidence: list[Passage] = []
        stop_reason = await self._write_chain(question, sentences=sentences, evidence=evidence, run=run, pool=pool)
        run.note_branch("chain_ended", stop_reason)
        prompts = [self._prompt("conclude", {"question": question, "thoughts": " ".join(sentences)}, run=run)]
        if evidence:
            prompts.append(self._prompt("read", {"question": question}, passages=evidence, run=run))
        answers = await self._candidates(prompts, purpose="read", run=run, settle=extract_answer)
        candidates = [answer for answer in answers if answer.text.lower() not in _UNKNOWN] or answers
        best = _index_of_least_doubt(candidates)
        return "" if best is None else candidates[best].text, stop_reason

    async def _write_chain(
        self, question: str, *, sentences: list[str], evidence: list[Passage], run: Run, pool: LatestPool
    ) -> str:
        """Append sentences to `sentences`, and their passages to `evidence`. Returns the stop reason."""
        queries: set[str] = set()
        while len(sentences) < self._params.sentences:
            fields = {"question": question, "thoughts": " ".join(sentences)}
            prompt = self._prompt("think", fields, passages=evidence, run=run)
            proposal = (await self._complete_greedily([prompt], purpose="think", run=run))[0]
            sentence = first_sentence(proposal.text)
            run.draft = extract_answer(sentence) or run.draft
            if not sentence or (await self._measure_doubts([prompt], purpose="think", run=run))[0] > self._params.delta:
                query = self._query(question, proposal=proposal, sentences=sentences, run=run)
                best = await self._write_from_new_passages(
                    fields, query=query, queries=queries, evidence=evidence, run=run, pool=pool
                )
                if isinstance(best, str):
                    return best
                sentence, passage = best
                evidence.append(passage)
            sentences.append(sentence)
            run.draft = extract_answer(sentence) or run.draft
            if has_answer(sentence):
                return "answer_found"
        return "max_sentences"

    async def _write_from_new_passages(
        self,
        fields: Mapping[str, str],
        *,
        query: str,
        queries: set[str],
        evidence: Sequence[Passage],
        run: Run,
        pool: LatestPool,
    ) -> tuple[str, Passage] | str:
        """Search, and write a sentence from each new passage. Returns the best (sentence, passage) or a stop reason."""
        if len(evidence) >= self._params.kept_passages:
            return "max_passages"
        if query in queries:
            return "repeated_query"
        queries.add(query)
        if not run.begin_round(cap=self._params.sentences):
            return "budget_rounds"
        pool.clear()
        await gather(run, query=query, pool=pool, k=self._params.passages)
        new = [passage for passage in pool.passages if passage not in evidence]
        if not new:
            return "nothing_new"
        prompts = [self._prompt("think", fields, passages=[*evidence, passage], run=run) for passage in new]
        sentences = await self._candidates(prompts, purpose="think_with", run=run, settle=first_sentence)
        best = _index_of_least_doubt(sentences)
        return "empty_sentence" if best is None else (sentences[best].text, new[best])

    def _query(self, question: str, *, proposal: Completion, sentences: Sequence[str], run: Run) -> str:
        """The content words of the proposal that are probable, or that occur in the question or the last sentence."""
        tokens = first_sentence_tokens(proposal, run=run)
        context = {term.strip(".,;:!?\"'").lower() for term in f"{question} {' '.join(sentences[-1:])}".split()}
        chosen = []
        for span in merge_words([token.text for token in tokens]):
            likelihood = min(math.exp(tokens[number].logprob) for number in span.tokens)
            term = span.text.strip(".,;:!?\"'")
            if is_content(term) and (likelihood >= _SURE or term.lower() in context):
                chosen.append(term)
        if not chosen:
            run.note_branch("query_fallback", "no word is sure: the question is searched")
        return " ".join(chosen) or question

    def _prompt(self, use: str, fields: Mapping[str, str], *, passages: Sequence[Passage] = (), run: Run) -> Prompt:
        params = self._params
        return fill_prompt(
            run,
            template=self._templates[use],
            fields=fields,
            passages=passages,
            max_tokens=max(params.max_tokens, params.sentence_tokens, params.sample_tokens),
            passage_words=params.passage_words,
            conversation=True,
        )

    async def _candidates(
        self, prompts: Sequence[Prompt], *, purpose: str, run: Run, settle: Settle
    ) -> list[_Candidate]:
        greedy = await self._complete_greedily(prompts, purpose=purpose, run=run)
        doubts = await self._measure_doubts(prompts, purpose=purpose, run=run)
        return [_Candidate(text=settle(done.text), doubt=doubt) for done, doubt in zip(greedy, doubts, strict=True)]

    async def _complete_greedily(self, prompts: Sequence[Prompt], *, purpose: str, run: Run) -> list[Completion]:
        settings: dict[str, Any] = {
            "purpose": purpose,
            "max_tokens": self._params.sentence_tokens if purpose.startswith("think") else self._params.max_tokens,
            "stop": ("\n",),
            "want": frozenset[Need]({"logprobs"}) if purpose == "think" else frozenset(),
        }
        return await run_calls([partial(run.complete, prompt, **settings) for prompt in prompts], run=run)

    async def _measure_doubts(self, prompts: Sequence[Prompt], *, purpose: str, run: Run) -> list[float]:
        count, sample = self._params.samples, partial(self._draw_sample, purpose=f"{purpose}_sample", run=run)
        calls = [partial(sample, prompt, number=number) for prompt in prompts for number in range(count)]
        samples = await run_calls(calls, run=run)
        return [
            self._measure_doubt(samples[at : at + count], purpose=purpose, run=run)
            for at in range(0, len(samples), count)
        ]

    async def _draw_sample(self, prompt: Prompt, *, purpose: str, number: int, run: Run) -> Completion:
        return await run.complete(
            prompt,
            purpose=purpose,
            max_tokens=self._params.sample_tokens,
            stop=("\n",),
            want=frozenset({"hidden_states"}),
            sampling=Sampling(temperature=self._params.temperature, seed=number, top_p=_TOP_P, top_k=_TOP_K),
        )

    def _measure_doubt(self, samples: Sequence[Completion], *, purpose: str, run: Run) -> float:
        written = [sample for sample in samples if sample.text.strip()]
        if len(written) < len(samples):
            run.note_branch("samples_dropped", f"{len(samples) - len(written)} of {len(samples)} are empty")
        if len(written) < 2:
            return math.inf
        doubt = uncertainty(np.stack([self._state(sample, run=run) for sample in written]), alpha=_ALPHA)
        run.note_branch("uncertainty", f"{purpose}: {doubt:.4f}")
        return doubt

    def _state(self, sample: Completion, *, run: Run) -> npt.NDArray[np.float32]:
        """Hidden state of the sample's last token at the configured layer, shape (d,)."""
        states = sample.details.get("hidden_states")
        if not isinstance(states, np.ndarray) or states.ndim != 2:
            message = f"{run.generator.name} returned no hidden states of shape (layers + 1, d)"
            remedy = "use a generator that fills details as ragbandit.strategies.generators.parts describes"
            raise ArmFailed(message, field="details.hidden_states", remedy=remedy)
        layer = len(states) // 2 if self._params.layer is None else self._params.layer
        if layer >= len(states) or not np.isfinite(states[layer]).all():
            message = f"the states of layer {layer} of 0..{len(states) - 1} are missing or not finite"
            remedy = "choose a layer that the model has"
            raise ArmFailed(message, field=f"arms.{self.name}.layer", remedy=remedy)
        state: npt.NDArray[np.float32] = states[layer]
        return state


def uncertainty(states: npt.NDArray[Any], *, alpha: float) -> float:
    """Disagreement of samples, higher if they agree less (the paper's measure, after INSIDE, Chen et al. 2024).

    states: Z, the hidden states of k samples with d features each, shape (k, d). J subtracts from each state its mean
    over the features; I is the identity. The result is logdet(Z J Z^T + alpha I) / k.
    """
    centred = states.astype(np.float64) - states.mean(axis=1, dtype=np.float64, keepdims=True)
    gram = centred @ centred.T + alpha * np.eye(len(states))
    # Every exact eigenvalue is at least alpha, but rounding errors can make it smaller, or negative.
    return float(np.log(np.maximum(np.linalg.eigvalsh(gram), alpha)).mean())


def _index_of_least_doubt(candidates: Sequence[_Candidate]) -> int | None:
    """Position of the text with the least doubt, the first among equals; None if all texts are empty."""
    written = [position for position, candidate in enumerate(candidates) if candidate.text]
    return min(written, key=lambda position: candidates[position].doubt, default=None)
