"""Settings at the top level of config.yaml, and a check of them. The core reads this module first: import little."""

from collections.abc import Iterator

from ragbandit.hooks import Finding, Section


class OwnSection(Section):
    #: whom to ask if an arm fails
    owner: str = "nobody"

    def findings(self) -> Iterator[Finding]:
        if not self.owner:
            yield Finding("warning", "data_dir", "nobody is asked if an arm fails", "set owner")
