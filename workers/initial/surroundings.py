"""Surroundings of a first configuration: models, an index or documents, and pipelines of other frameworks."""

import contextlib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.markup import escape

from ragbandit.router.cli.console import errors
from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError, InvalidInput, RagBanditError, require_service
from ragbandit.strategies.arms.callable import CallableArm
from ragbandit.workers.initial.servers import Model, ModelServer, find_server, pick
from ragbandit.workers.verbs.index import build_index
from ragbandit.workers.wiring.retrievers import kind_of, with_choice

#: where documents are looked for that nobody named
_USUAL_DOCUMENTS: Final = ("docs", "documents", "corpus.jsonl")
#: packages of the local model
_LOCAL: Final = ("torch", "transformers")

#: the params of an arm
Params = dict[str, Any]


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
    #: the packages of the local model are installed
    local: bool = False
    #: of an index of words: its name, and what is in it, in words
    index: tuple[str, str] | None = None


def look_around(
    *,
    url: str | None,
    key_env: str,
    wanted: Sequence[str],
    documents: Path | None,
    pipelines: Sequence[str],
    settings: Settings,
) -> Surroundings:
    """What is here; documents are indexed. Where workers cannot run, or two pipelines are named, nothing else counts.

    wanted: models by name. settings: those in force without a file. Raises RagBanditError for what was named and
    cannot be used.
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
    local = all(importlib.util.find_spec(name) for name in _LOCAL)
    index = _index(documents, settings=settings) if models or local else None
    return Surroundings(pipelines=arms, server=server, models=models, picked=picked, local=local, index=index)


def _pipeline_arm(given: str) -> tuple[str, Params]:
    """The arm that "name=package.module:object" stands for. The object is imported and, if a function, called."""
    name, _, path = given.partition("=")
    try:
        CallableArm(name=name, object=path)
    except ConfigError as error:
        raise ConfigError(error.message, field="--pipeline", remedy=error.remedy) from error
    return name, {"class": "callable", "object": path}


def _index(named: Path | None, *, settings: Settings) -> tuple[str, str] | None:
    """The index that is there, else one that is built of documents. named: they are indexed in any case.

    Documents that nobody named and that cannot be read are left out, and said. Raises ConfigError where a package for
    them is missing.
    """
    folder = Path(settings.data_dir).absolute() / "indexes"
    names = sorted({file.parent.name for file in folder.glob("*/index.json")})
    for name in () if named else sorted(names, key=settings.retriever.index.__ne__):
        with contextlib.suppress(RagBanditError):  # it is of another kind
            return name, f"{kind_of(with_choice(settings, index=name)).info()['passages']} passages"
    documents = named or next((path for path in map(Path, _USUAL_DOCUMENTS) if path.exists()), None)
    if documents is None:
        return None
    if not documents.exists():
        raise InvalidInput(f"{named} does not exist", field="--documents", remedy="give a folder or a corpus.jsonl")
    try:
        facts = build_index(settings, corpus=documents)
    except RagBanditError as error:
        if named or isinstance(error, ConfigError):  # a package is missing: arms that search would be left out
            raise
        errors.print(escape(f"{documents} is not indexed: {error}"), soft_wrap=True, highlight=False)
        return None
    return settings.retriever.index, f"{facts['passages']} passages of {documents}"
