"""The verb `ragbandit index counts`."""

from pathlib import Path
from typing import Annotated

import typer

from ragbandit.additions.popularity.mention_counts import count_mentions, write_counts
from ragbandit.router.cli.console import interruptible
from ragbandit.router.cli.options import JsonOption
from ragbandit.router.cli.tables import show
from ragbandit.strategies.retrievers.corpus import read_corpus


def counts(
    *,
    corpus: Annotated[Path, typer.Option(help="JSONL or Parquet with id, title and text, or a folder of documents")],
    out: Annotated[Path, typer.Option(help="file to write, for policy.params.counts")],
    as_json: JsonOption = False,
) -> None:
    """Count in how many passages of a corpus each name is mentioned, for the policy `popularity`."""
    with interruptible("stopped; the same command starts from the beginning"):
        counted = count_mentions(read_corpus(corpus))
        write_counts(counted, out)
    facts = {"file": str(out), "passages": counted["passages"], "names": len(counted["mentions"])}
    show(facts, as_json=as_json)
