"""Settings of features that left the product."""

import pytest

from ragbandit.router.config.loading import load
from ragbandit.router.config.named_sections import REMOVED, instead_of
from ragbandit.shared.errors import ConfigError


def test_a_setting_that_left_names_what_to_use_instead(tmp_path):
    """Every setting that left is refused, alone or inside its section, with its path and what to use instead."""
    assert REMOVED
    for path, words in REMOVED.items():
        tree: object = {"x": 1}
        for part in reversed(path.split(".")):
            tree = {part: tree}
        file = tmp_path / "config.yaml"
        file.write_text(str(tree))
        with pytest.raises(ConfigError, match="left the product") as caught:
            load(str(file))
        assert caught.value.field is not None
        assert path.startswith(caught.value.field) or caught.value.field.startswith(path)
        assert words in (caught.value.remedy or "")


def test_other_settings_are_not_affected():
    """A setting that only begins with the same letters is no setting that left."""
    assert instead_of("webhooks.ops.url") is not None
    assert instead_of("webhooksx") is None
    assert instead_of("server.port") is None
