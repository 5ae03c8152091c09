"""The retriever where no arm retrieves: nothing is opened, and no index is needed."""

from ragbandit.shared.errors import ArmFailed
from ragbandit.strategies.base import Hit, Retriever


class NoRetriever(Retriever):
    """Finds nothing: a search is an error of the arm that said that it does not retrieve."""

    name = "none"

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        """Raises ArmFailed."""
        del query, k
        raise ArmFailed("the arm searched, and its class says retrieves = False", remedy="remove that from the class")

    async def close(self) -> None:
        """Nothing to close."""
