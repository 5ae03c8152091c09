"""The dialect of Anthropic's Messages."""

from typing import Final

from ragbandit.additions.anthropic.messages import requests
from ragbandit.shared.dialects.dialect import Dialect

DIALECT: Final = Dialect(
    as_chat=requests.chat_of,
    takes_encoding=True,
    unread=requests.unread,
    need=requests.NEED,
    need_parameters=("mcp_servers", "tools"),
    keys_of_caller=frozenset({"input_schema", "input"}),
    reply_prefix=requests.MESSAGE_PREFIX,
)
