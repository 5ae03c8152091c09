"""`ragbandit.advise`: the verdict for functions of the caller's program, with its router."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ragbandit.additions.advice.applying import apply_advice
from ragbandit.additions.advice.assessment import arm_notes
from ragbandit.additions.advice.question_file import Questions, question_file
from ragbandit.additions.advice.run import AdviceRun, RunOptions
from ragbandit.additions.advice.verdict import Advice, Criteria
from ragbandit.additions.evaluation.outcomes import OutcomeReader
from ragbandit.router.offline.estimation import no_progress
from ragbandit.router.serving.checks.questions import check_type, checked_number
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.types import PolicyLabel
from ragbandit.workers.setup.pipelines import Pipelines


def advise(
    router: Router,
    pipelines: Pipelines,
    questions: Questions,
    *,
    budget: float | None = None,
    family: str = "ours",
    apply: bool = False,
) -> Advice:
    """Run your pipelines on the same questions until the verdict is known: route, fix, or not enough.

    Stored answers are reused. pipelines: arm -> function of the question that returns a text, (text, cost) or
    a mapping with `answer`, `steps` and `cost`. questions: question -> right answers, rows of `question` and
    `answers`, or a JSONL file. budget: most dollars that the answers may cost. apply: let this router's policy learn
    the outcomes, and write the best arm as incumbent and holdback into its file, for the next router. Raises
    InvalidInput, ConfigError.
    """
    check_type(pipelines, Mapping, field="pipelines", wanted="a mapping of names to functions")
    budget = None if budget is None else checked_number(budget, field="budget")
    settings = router.settings
    warnings: list[str] = []
    outcomes = OutcomeReader(settings=settings, progress=no_progress, router=router)
    asking = AdviceRun(outcomes=outcomes, ask=Criteria(), warn=warnings.append)
    run = RunOptions(pipelines=pipelines, family=family, budget=budget)
    file = question_file(questions, folder=Path(settings.data_dir))
    details, material, advice = asking.finish(file, run=run, learns=apply)
    if apply:
        ledger = Ledger(router.database, label=PolicyLabel(settings.policy.label))
        common: dict[str, Any] = {"ledger": ledger, "settings": settings, "encoder": router.encoder}
        applied = apply_advice(advice, material, apply=True, file=router.config_file, progress=no_progress, **common)
        warnings.append(f"policy.incumbent: {'; '.join(applied['incumbent'])}")
        router.refresh()
    warnings.insert(0, f"ended: {details['ended']}")
    return replace(
        advice,
        notes=(
            *warnings,
            *arm_notes(material, incumbent=settings.policy.incumbent, configured=settings.arms),
            *advice.notes,
        ),
    )
