"""A finding: a fault of an installation, or an unexpected effect of its settings, with its remedy."""

from dataclasses import dataclass
from typing import Literal

#: problem: something fails, or data is lost. warning: everything works, but perhaps not for long, or not as expected.
#: advice: nothing is wrong, but something could be better
Severity = Literal["advice", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    #: dotted key of the setting, or name of the part of the installation
    about: str
    what: str
    #: what to do; empty if `what` contains the advice already
    remedy: str = ""

    @property
    def line(self) -> str:
        return f"{self.about}: {self.what.rstrip('.')}" + (f"; do: {self.remedy}" if self.remedy else "")
