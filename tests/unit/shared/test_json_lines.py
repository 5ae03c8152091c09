"""Lines of JSON Lines from outside."""

import time

import pytest

from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.json_lines import parse_line


def test_a_repeated_key_among_many_is_found_in_linear_time():
    """A line with 100,000 keys, of which the last is repeated, is refused by its name; with a square of the keys it
    would take minutes.
    """
    keys = b",".join(b'"k%d":1' % number for number in range(100_000))
    began = time.process_time()
    with pytest.raises(InvalidInput, match="the key 'k99999' stands twice"):
        parse_line(b"{" + keys + b',"k99999":2}')
    assert time.process_time() - began < 20.0
