"""Whether the golden questions can be asked."""

from collections.abc import Iterable

from ragbandit.additions.golden.settings import GoldenSection
from ragbandit.router.config.settings import Settings
from ragbandit.router.operation.finding import Finding


def check_golden(settings: Settings) -> Iterable[Finding]:
    """Raises ConfigError if the file of golden questions cannot be read or used. Has no findings."""
    options = settings.learning.of(GoldenSection)
    if options.golden is not None:
        from ragbandit.additions.golden.questions import read_golden  # it takes 40 MB

        read_golden(options)
    return ()
