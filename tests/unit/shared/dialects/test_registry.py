"""The dialects by name."""

import pytest

from ragbandit.shared.dialects.registry import as_chat, unread_parameters
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import Conversation


@pytest.mark.parametrize("read", [as_chat, unread_parameters])
def test_a_dialect_of_an_absent_addition_is_named(read):
    """A conversation in a dialect that a worker lacks, since an addition was deleted there, is an error with names."""
    with pytest.raises(ConfigError, match=r"no dialect is called 'esperanto' here; .*chat") as caught:
        read(Conversation(fields={}, dialect="esperanto", headers={}))
    assert caught.value.remedy
