"""The settings of golden questions."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from ragbandit.router.config.finding import Finding
from ragbandit.router.config.section import Section


class GoldenSection(Section):
    """Settings that golden questions add to `learning`."""

    #: JSONL file of questions with answers, in the form that `evaluate` reads. Every `golden_s` seconds the arms that
    #: workers run answer them, and the policy learns the outcomes (docs/drift.md). None for no golden questions
    golden: Annotated[str, Field(min_length=1)] | None = None
    #: seconds between two runs of the golden questions
    golden_s: Annotated[float, Field(ge=60)] = 86_400.0
    #: maximum dollars of the answers to these questions each time; None for no limit
    golden_dollars: Annotated[float, Field(gt=0)] | None = None

    def findings(self) -> Iterable[Finding]:
        """Check the file of golden questions. Raises ConfigError if it cannot be read or used. Returns no findings."""
        if self.golden is not None:
            from ragbandit.additions.golden.questions import read_golden  # this import takes 40 MB

            read_golden(self.golden)
        return ()
