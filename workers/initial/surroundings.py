"""Surroundings of a first configuration: models, an index or documents, and pipelines of other frameworks."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError, InvalidInput, RagBanditError, require_service
from ragbandit.strategies.adapters import LangChainArm, LlamaIndexArm
from ragbandit.workers.initial.servers import Model, ModelServer, find_server, pick
from ragbandit.workers.wiring.retrievers import kind_of, with_choice

#: where documents are looked for that nobody named
_USUAL_DOCUMENTS: Final = ("docs", "documents", "corpus.jsonl")
_HAYSTACK: Final = (
    "write a Haystack pipeline as an arm with class: ragbandit.strategies.adapters:HaystackArm, inputs and output"
)
#: packages of the local model
_LOCAL: Final = ("torch", "transformers")

#: the params of an arm
Params = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """An index of passages under data_dir/indexes."""

    #: bm25 or dense
    retriever: str
    name: str
    passages: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What answers can be made of here."""

    #: arms that are pipelines of other frameworks, by name
    pipelines: Mapping[str, Params]
    #: why workers cannot run here, in words; "": they can
    no_workers: str = ""
    #: the server, with the models of it that are used, the small one first, and why these; no server: none
    server: ModelServer | None = None
    models: tuple[Model, ...] = ()
    picked: str = ""
    #: the variable that holds the server's key
    key_env: str = "OPENAI_API_KEY"
    #: the packages of the local model are installed
    local: bool = False
    index: Index | None = None
    #: a folder or file that can be indexed
    documents: Path | None = None


def look_around(
    *,
    url: str | None,
    key_env: str,
    wanted: Sequence[str],
    documents: Path | None,
    pipelines: Sequence[str],
    settings: Settings,
) -> Surroundings:
    """What is here. Nothing else is looked for where workers cannot run, and where two pipelines are named.

    wanted: models by name. settings: those in force without a file. Raises ConfigError, InvalidInput for what was
    named and cannot be used.
    """
    try:
        require_service()
    except ConfigError as error:
        if url or wanted or documents or pipelines:
            raise
        return Surroundings(pipelines={}, no_workers=str(error))
    arms = dict(_pipeline_arm(given) for given in pipelines)
    if len(arms) > 1:
        return Surroundings(pipelines=arms)
    server = find_server(url=url, key_env=key_env, environ=os.environ)
    if wanted and server is None:
        raise ConfigError("no server was found", field="--model", remedy="give its address with --url")
    models, picked = ((), "") if server is None else pick(server, wanted=wanted)
    index = None if documents else _index_here(settings)
    return Surroundings(
        pipelines=arms,
        server=server,
        models=models,
        picked=picked,
        key_env=key_env,
        local=all(importlib.util.find_spec(name) for name in _LOCAL),
        index=index,
        documents=None if index else _documents(documents),
    )


def _pipeline_arm(given: str) -> tuple[str, Params]:
    """The arm that "name=package.module:object" stands for. The object is imported and, if a function, called."""
    name, _, path = given.partition("=")
    messages = list[str]()
    for kind in (LangChainArm, LlamaIndexArm):
        try:
            kind(name=name, object=path)
        except ConfigError as error:
            messages.append(error.message)
        else:
            return name, {"class": f"ragbandit.strategies.adapters:{kind.__name__}", "object": path}
    remedy = f'give --pipeline "name=package.module:object"; {_HAYSTACK}'
    raise ConfigError("; ".join(dict.fromkeys(messages)), field="--pipeline", remedy=remedy)


def _index_here(settings: Settings) -> Index | None:
    """The index called "default", else the first by name that can be read; None if there is none."""
    folder = Path(settings.data_dir).absolute() / "indexes"
    names = {file.parent.name for file in folder.glob("*/index.json")}
    for name in sorted(names, key=lambda name: (name != settings.retriever.index, name)):
        for retriever in ("bm25", "dense"):
            try:
                facts = kind_of(with_choice(settings, retriever=retriever, index=name)).info()
            except RagBanditError:  # it is of the other kind, or its package is missing
                continue
            return Index(retriever=retriever, name=name, passages=int(str(facts["passages"])))
    return None


def _documents(given: Path | None) -> Path | None:
    if given is not None and not given.exists():
        raise InvalidInput(f"{given} does not exist", field="--documents", remedy="give a folder or a corpus.jsonl")
    return given or next((path for path in map(Path, _USUAL_DOCUMENTS) if path.exists()), None)
