"""What `ragbandit validate` warns of in the setting `ratings`."""

import os
from collections.abc import Iterator

from ragbandit.additions.other_tools.ratings.settings import RatingsSection
from ragbandit.router.config.settings import Settings
from ragbandit.router.operation.finding import Finding
from ragbandit.shared.texts.redaction import shown_variable


def unset_keys(settings: Settings) -> Iterator[Finding]:
    """Yield a warning for each list of ratings whose key is not in the environment."""
    for name, source in settings.of(RatingsSection).ratings.items():
        if not os.environ.get(source.key_env):
            what = f"the environment variable {shown_variable(source.key_env)} is not set: its ratings are not fetched"
            yield Finding("warning", f"ratings.{name}.key_env", what, "set it to the key of that service")
