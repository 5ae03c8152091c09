"""Parts that RagBandit takes from packages of yours and from the folders of ragbandit/additions, and their shapes.

- an arm: `Arm`, by a class path, an entry point of the group `ragbandit.strategies`, or `Addition.arms`. Its contract:
  `ragbandit.testing.arms.ARM_CHECKS`
- a policy: `Policy`, by a class path, an entry point of the group `ragbandit.policies`, or `Addition.policies`. Its
  contract: `ragbandit.testing.policies.POLICY_CHECKS`
- a generator: `Generator` is the loaded model, and `GeneratorKind` knows facts about it before, by
  `Addition.generators`. Its contract for streams: `ragbandit.testing.doubles.STREAM_CHECKS`
- a retriever: `Retriever`, by the path of a function that returns one, as `retriever.name`
- a form of documents: `ReadDocument`, by `Addition.documents`
- an interface over HTTP: a `Door` of router/api/door.py, by `Addition.doors`
- settings: a subclass of `Section` with keys for a section of config.yaml or its top level, by `Addition.sections`;
  code reads them by `settings.of(Class)`
- a chore: `Chore`, work that a process repeats in a thread of its own, by `Addition.chores`. A process asks the class
  which chores it should do (`of`), and calls `do` again and again until it ends, then `end` once. An error of `do` is
  logged once for each outage, and `do` is called again; an error of `of` or of the constructor ends the process at its
  start. Chores of one process share its database connections: a chore that takes long holds up no other, but its reads
  and writes do, and several processes do it at once unless it holds a lease. Its contract:
  `ragbandit.testing.chores.check_chore`
- a verb of the command: a function with typer's options, by `Addition.verbs`

Class paths and entry points are for packages of others. An addition is a folder of ours that can be deleted: the core
finds it by `ragbandit.shared.additions`, and imports the classes of a hook when it needs one of them. A class that
cannot be imported is a ConfigError with its name. docs/extend.md has an arm, a policy, a form of documents and a
chore as examples, which a test runs; an example of a retriever is in docs/generators.md.
"""

from pathlib import Path
from typing import Protocol

from ragbandit.router.config.section import Section
from ragbandit.router.policies.base import Policy
from ragbandit.shared.additions import Addition
from ragbandit.strategies.base import Generator, Retriever
from ragbandit.strategies.run import Strategy as Arm
from ragbandit.workers.chores.chore import Chore
from ragbandit.workers.setup.generator_kinds import GeneratorKind

__all__ = [
    "Addition",
    "Arm",
    "Chore",
    "Generator",
    "GeneratorKind",
    "Policy",
    "ReadDocument",
    "Retriever",
    "Section",
]


class ReadDocument(Protocol):
    """Reads a document of one form, as "a.docx", for `ragbandit index build`."""

    def __call__(self, path: Path, /) -> tuple[str, str]:
        """Returns (title or "", text). What is not read is named in a warning of the logger "ragbandit.documents".

        Raises InvalidInput for a file that cannot be read; `index build` leaves it out and says why. Called once for
        each file, one after the other, with files of at most 64 MiB.
        """
