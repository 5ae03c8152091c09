"""`self_rerank`: search once, judge every passage, answer from the useful ones (Adaptive-Note's baseline)."""

from collections.abc import Sequence

from ragbandit.strategies.arm_parts.two_stages import TwoStages, answer_from
from ragbandit.strategies.base import Passage
from ragbandit.strategies.prompting.parsing import parsed_numbered_labels
from ragbandit.strategies.prompting.passages import PassagePool
from ragbandit.strategies.run import Run

__all__ = ["SelfRerank"]


_USEFUL = "useful"

#: all verdicts: what is asked for, and what small models say instead of useless
_VERDICTS = (_USEFUL, "useless", "not useful")


class SelfRerank(TwoStages):
    """A verdict on every passage, useful or useless, then the answer from the useful ones.

    Passages without a verdict are written into the trace as "parse_failed" and not kept. If no passage has a
    verdict, or none is useful, all are kept; the trace says which of the two as "kept_all".
    """

    _stage = "self_rerank"
    _readers = {"short": "read_direct", "long": "read_long"}  # noqa: RUF012 a ClassVar by its base

    async def _read(self, question: str, *, text: str, run: Run, pool: PassagePool) -> str:
        return await answer_from(
            run,
            template=self._reader_template,
            fields={"question": question},
            style=self._params.style,
            max_tokens=self._params.max_tokens,
            # The first verdict may have been begun for the model.
            passages=_useful(f"{self._stage_template.prefix} {text}", run=run, passages=pool.passages),
            pool=pool,
            passage_words=self._params.passage_words,
        )


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
    kept = [passage for number, passage in numbered if labels.get(number) == _USEFUL]
    if not kept:
        run.note_branch("kept_all", "none is useful" if labels else "no verdict")
        return passages
    run.note_branch("kept", ", ".join(passage.id for passage in kept))
    return kept
