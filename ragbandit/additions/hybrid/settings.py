"""Settings of the retriever "hybrid"."""

from typing import Annotated, Final

from pydantic import Field

from ragbandit.router.config.section import RETRIEVERS, Section, names_schema, one_of
from ragbandit.shared.additions import offered_places

_HALVES: Final = [name for name in (*RETRIEVERS, *offered_places("retrievers")) if name != "hybrid"]
HalfName = Annotated[str, one_of(_HALVES, or_path=True), Field(json_schema_extra=names_schema(_HALVES, or_path=True))]


class HybridSection(Section):
    """Settings that the retriever "hybrid" adds to the section `retriever`."""

    #: "hybrid": the first backend, or your own function
    first: HalfName = "bm25"
    #: "hybrid": the second backend, or your own function
    second: HalfName = "dense"
