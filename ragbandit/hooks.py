"""The parts that additions offer to RagBandit, and the classes that describe these parts.

An addition is an installed package with an entry point of the group `ragbandit.additions`, or a folder of
ragbandit/additions. The `__init__` of the package defines ADDITION. An addition may offer any part in this list.

- an arm: `Arm`, by a class path, an entry point of the group `ragbandit.strategies`, or `Addition.arms`. Its contract:
  `ragbandit.testing.arms.ARM_CHECKS`
- an arm that asks other configured arms: also a subclass of `CompositeArm`, which gets each of them as an `ArmPart`.
  `Addition.arm_parts` lists its params that name arms, so that a router knows these arms without importing the class
- a policy: `Policy`, by a class path, an entry point of the group `ragbandit.policies`, or `Addition.policies`. Its
  contract: `ragbandit.testing.policies.POLICY_CHECKS`
- a generator: `Generator` is the loaded model; `GeneratorKind` gives facts about it before it is loaded, by
  `Addition.generators`. Its contract for streams: `ragbandit.testing.doubles.STREAM_CHECKS`
- a retriever: `Retriever` is the opened index, by the path of a function that returns one, as `retriever.name`.
  `RetrieverKind` also builds the index, and gives facts about it before it is opened; `Addition.retrievers` has
  functions that make a kind from the settings. Every process makes kinds, and often: making one must load no package
  and ask no server. Its contract: `ragbandit.testing.retrievers.RETRIEVER_CHECKS`
- a step of deciding, as a guard: a subclass of `Step`, by `Addition.steps`. It names the step of the core that it
  follows. `prepare` may ask a model or a service before the question waits for its batch, which takes the question's
  time; a step has no part in the draw, in the transaction that stores decisions, or in learning. A step may provide
  what a policy needs besides question and features, such as a model's pick: `NeedSource`, by `Step.provides`. Its
  contract: `ragbandit.testing.steps.check_step`
- a form of documents: `ReadDocument`, by `Addition.documents`
- a dialect of conversations, which also converts them to chat completions: a `Dialect`, by `Addition.dialects`. Only a
  generator that sends the dialect needs it: a door can convert its requests to chat completions by itself
- an interface over HTTP, or a page for people: a `Door`, by `Addition.doors`; if it takes questions,
  `Addition.surfaces` has its name in rules and in `conversation.units`. Its contract:
  `ragbandit.testing.doors.check_door`
- settings: a subclass of `Section` with keys for a section of config.yaml or its top level, by `Addition.sections`;
  code reads them from that section, as in `settings.retriever.of(Class)`. Its method `findings` returns a `Finding` for
  each setting that has an unexpected effect, about its key, and raises ConfigError, with key and remedy, for settings
  with which no service can start; `validate` calls it again for each fault of the settings, so it must be quick, and
  connect to nothing. Its contract: `ragbandit.testing.settings_checks.check_settings_check`. In the section
  `retriever` its method `around` may wrap any retriever, as a reranker does: it returns the kind unchanged, or
  `dataclasses.replace(kind, open=..., ...)`, loads no package and asks no server, since kinds are made often
- a chore: `Chore`, work that a process repeats in a thread of its own, by `Addition.chores`. A process asks the class
  which chores it should do (`of`), and calls `do` again and again until it ends, then `end` once. An error of `do` is
  logged once for each outage, and `do` is called again; an error of `of` or of the constructor ends the process at its
  start. Chores of one process share its database connections: a chore that takes long holds up no other, but its reads
  and writes do, and several processes do it at once unless it holds a lease. Its contract:
  `ragbandit.testing.chores.check_chore`
- a form of other tools' logs: `LogForm`, by `Addition.logs`; the addition other_tools reads them. Its contract:
  `ragbandit.testing.logs.check_log_form`
- a verb of the command: a function with typer's options, by `Addition.verbs`

The core finds additions by `ragbandit.shared.additions`, and imports the classes of a hook when it needs one of them. A
class that cannot be imported is a ConfigError with its name and its package. docs/extend.md has two arms, a policy, a
form of documents, a retriever, a chore, an interface, a guard, a dialect, a verb and settings as examples, and
docs/logs.md a form of logs; tests run them.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from ragbandit.shared.additions import Addition

if TYPE_CHECKING:
    from ragbandit.router.api.door import Door
    from ragbandit.router.config.finding import Finding
    from ragbandit.router.config.section import Section
    from ragbandit.router.config.settings import Settings
    from ragbandit.router.policies.base import Policy
    from ragbandit.router.policies.needs import NeedSource
    from ragbandit.router.serving.deciding.steps.step import Step
    from ragbandit.shared.dialects.dialect import Dialect
    from ragbandit.strategies.arm_parts.composite import ArmPart, CompositeArm
    from ragbandit.strategies.base import Generator, Retriever
    from ragbandit.strategies.run import Strategy as Arm
    from ragbandit.workers.chores.chore import Chore
    from ragbandit.workers.setup.generator_kinds import GeneratorKind
    from ragbandit.workers.setup.retrievers import RetrieverKind

#: name -> module and class; imported at its first use
_CLASSES: Final[Mapping[str, str]] = {
    "Arm": "ragbandit.strategies.run:Strategy",
    "ArmPart": "ragbandit.strategies.arm_parts.composite:ArmPart",
    "Chore": "ragbandit.workers.chores.chore:Chore",
    "CompositeArm": "ragbandit.strategies.arm_parts.composite:CompositeArm",
    "Dialect": "ragbandit.shared.dialects.dialect:Dialect",
    "Door": "ragbandit.router.api.door:Door",
    "Finding": "ragbandit.router.config.finding:Finding",
    "Generator": "ragbandit.strategies.base:Generator",
    "GeneratorKind": "ragbandit.workers.setup.generator_kinds:GeneratorKind",
    "NeedSource": "ragbandit.router.policies.needs:NeedSource",
    "Policy": "ragbandit.router.policies.base:Policy",
    "Retriever": "ragbandit.strategies.base:Retriever",
    "RetrieverKind": "ragbandit.workers.setup.retrievers:RetrieverKind",
    "Section": "ragbandit.router.config.section:Section",
    "Settings": "ragbandit.router.config.settings:Settings",
    "Step": "ragbandit.router.serving.deciding.steps.step:Step",
}

__all__ = [
    "Addition",
    "Arm",
    "ArmPart",
    "Chore",
    "CompositeArm",
    "Dialect",
    "Door",
    "Finding",
    "Generator",
    "GeneratorKind",
    "LogForm",
    "NeedSource",
    "Policy",
    "ReadDocument",
    "Retriever",
    "RetrieverKind",
    "Section",
    "Settings",
    "Step",
]


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return resolve_name(_CLASSES[name])


class ReadDocument(Protocol):
    """Reads a document of one form, as "a.docx", for `ragbandit index build`."""

    def __call__(self, path: Path, /) -> tuple[str, str]:
        """Returns (title or "", text). A warning of the logger "ragbandit.documents" names unread parts.

        Raises InvalidInput for a file that cannot be read; `index build` leaves it out and says why. Called once for
        each file, one after the other, with files of at most 64 MiB.
        """


class LogForm(Protocol):
    """Reads the records of one tool's log, for `ragbandit data questions`. `Addition.logs` names the class."""

    #: fields of which a record has at least one; a table needs one of them as a column
    keys: ClassVar[Sequence[str]]

    @staticmethod
    def read(record: Mapping[str, Any], /) -> Iterable[Mapping[str, Any]] | None:
        """Returns the questions of a record, or None for a record of another tool.

        A question has the field `question` (empty if it asks nothing and only its costs count), and as far as they are
        known id, answer, answers (the right ones), model, dollars, prompt_tokens, completion_tokens, session, turn,
        time, scores, tags, user and metadata. Values of any type that JSON or Parquet has are read as in other logs; a
        cell of delimited text is a text.

        A record for which it raises is left out, and the command names its number and the form. Called twice for each
        record, and before the forms of the addition other_tools: recognise a record by the names of its fields.
        """
