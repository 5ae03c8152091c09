"""Checks of links: the ids of other systems that a query names are few, and short enough for an index."""

import re
from collections.abc import Mapping
from typing import Final

from ragbandit.shared.errors import InvalidInput

__all__ = ["LINK_KIND", "LINK_VALUE", "MAX_LINKS", "check_links"]

#: most links of one decision
MAX_LINKS: Final = 8
#: what a kind and an id may look like
LINK_KIND: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
LINK_VALUE: Final = re.compile(r"[!-~]{1,128}")


def check_links(links: object) -> None:
    """Raises InvalidInput, naming the field and the remedy, for links that cannot be kept."""
    if not isinstance(links, Mapping):
        message = f'"links" must be an object, not {type(links).__name__}'
        raise InvalidInput(message, field="links", remedy='send kinds and ids, for example {"trace": "..."}')
    if len(links) > MAX_LINKS:
        raise InvalidInput(f'"links" has {len(links)} entries', field="links", remedy=f"send at most {MAX_LINKS}")
    for kind, value in links.items():
        if not isinstance(kind, str) or not LINK_KIND.fullmatch(kind):
            remedy = "use 1 to 32 small letters, digits and underscores, a letter first"
            raise InvalidInput(f"{kind!r:.80} is no kind of link", field="links", remedy=remedy)
        if not isinstance(value, str) or not LINK_VALUE.fullmatch(value):
            remedy = "use 1 to 128 characters of ASCII without spaces"
            raise InvalidInput(f'{value!r:.80} is no id for the link "{kind}"', field=f"links.{kind}", remedy=remedy)
