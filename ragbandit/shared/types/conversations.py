from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from ragbandit.shared.types.encodings import Encoding
from ragbandit.shared.types.names import Json


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """A client's request to a model, for arms that pass it on. False as a bool if the client sent nothing for a model.

    fields: messages and parameters as received, without parameters of this service
    dialect: form of the fields: a name of DIALECTS (ragbandit/shared/dialects/registry.py)
    headers: headers of the client for servers of the same dialect
    encoding: the JSON of those parts of the fields that were already encoded
    """

    fields: Mapping[str, Json] = field(default_factory=dict)
    dialect: str = "chat"
    headers: Mapping[str, str] = field(default_factory=dict)
    encoding: Encoding = field(default=Encoding(), compare=False, repr=False)

    def __bool__(self) -> bool:
        return bool(self.fields)

    def having(self, fields: Mapping[str, Json]) -> Self:
        """The same conversation with these fields."""
        return replace(self, fields=fields)


#: the conversation of a question that came without one
NO_CONVERSATION = Conversation()
