"""The dialect of Anthropic's Messages."""

from typing import Final

from ragbandit.additions.anthropic.messages import requests
from ragbandit.additions.anthropic.messages.in_chats import in_chat_form
from ragbandit.shared.dialects.dialect import Dialect

DIALECT: Final = Dialect(
    as_chat=requests.chat_of,
    unread=requests.unread,
    in_chat_form=in_chat_form,
    need=requests.NEED,
    need_parameters=("mcp_servers", "tools"),
    keys_of_caller=frozenset({"input_schema", "input"}),
    reply_prefix=requests.MESSAGE_PREFIX,
)
