"""The retriever "hybrid" before it is opened."""

from ragbandit.additions.hybrid.retriever import HybridRetriever
from ragbandit.additions.hybrid.settings import HybridSection
from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.base import Retriever
from ragbandit.workers.setup.retrievers import (
    CountDone,
    Facts,
    RetrieverKind,
    Rows,
    check_class,
    retriever_kind,
    with_choice,
)


def hybrid_kind(settings: Settings) -> RetrieverKind:
    """The hybrid retriever of the settings, before it is opened."""
    chosen = settings.retriever.of(HybridSection)

    def halves() -> dict[str, RetrieverKind]:
        if chosen.first == chosen.second:
            message = f"both are {chosen.first!r}"
            raise ConfigError(message, field="retriever.second", remedy="choose two different retrievers")
        names = (chosen.first, chosen.second)
        return {name: retriever_kind(with_choice(settings, retriever=name), wrapped=False) for name in names}

    def open_both() -> Retriever:
        first, second = halves().values()
        return HybridRetriever(first.open(), second=second.open())

    def build(rows: Rows, progress: CountDone) -> Facts:
        return {name: half.build_index(rows, progress) for name, half in halves().items() if ":" not in name}

    def check() -> None:
        check_class(chosen.first, key="first")
        check_class(chosen.second, key="second")

    return RetrieverKind(
        open=open_both, build=build, read=lambda: {name: half.info() for name, half in halves().items()}, check=check
    )
