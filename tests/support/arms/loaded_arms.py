"""Arms as a worker process has loaded them, on parts of the test's own."""

from ragbandit.strategies.registry import make_arms
from ragbandit.strategies.retrievers.without_index import MemoryRetriever
from ragbandit.workers.setup.loading import LoadedArm


def loaded_arms(arms, *, generator, retriever=None, most_runs=1000, version=""):
    """These arms, name -> params, that share a generator and a retriever."""
    retriever = retriever or MemoryRetriever([])
    made = make_arms(arms, capabilities=generator.capabilities)
    parts = {"generator": generator, "retriever": retriever, "most_runs": most_runs, "version": version}
    return {name: LoadedArm(strategy=arm, **parts) for name, arm in made.items()}
