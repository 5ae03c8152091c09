"""The values of Anthropic's replies, as they are read."""

from itertools import chain

import pytest

from ragbandit.additions.anthropic.messages.replies import ChatChunks
from ragbandit.shared.dialects.chat.replies import MAX_PARTS
from ragbandit.shared.model_servers.event_reader import BrokenReply


@pytest.mark.parametrize("kind", ["whole", "open"])
def test_blocks_are_counted(kind):
    """More blocks than MAX_PARTS, whole or begun and not ended, are a broken reply."""
    chunks = ChatChunks()
    begin = [{"type": "content_block_start", "index": n, "content_block": {"type": "x"}} for n in range(MAX_PARTS + 2)]
    values = [{"type": "message", "content": [{"type": "x"}] * (MAX_PARTS + 1)}] if kind == "whole" else begin
    with pytest.raises(BrokenReply, match="parts, blocks"):
        list(chain.from_iterable(map(chunks.of, values)))
