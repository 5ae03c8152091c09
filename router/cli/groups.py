"""Verbs that are loaded when they are called: a table of import strings, and help from the docstrings in the source."""

import ast
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from ragbandit.router.cli.console import failing_well


class VerbGroup(NamedTuple):
    """Verbs under one name: what the help says of them, and the table of them."""

    help: str
    verbs: Mapping[str, str]


#: verb -> "module:function", or a group of such verbs. The docstring of the function is the verb's help.
Verbs = Mapping[str, str | VerbGroup]


class LazyGroup(TyperGroup):
    """Lists its verbs without importing them, and imports the one that is called."""

    #: of the root; a group below it is made with its own
    verbs: Verbs
    #: title in the help -> the verbs below it
    panels: Mapping[str, Sequence[str]] = MappingProxyType({})

    def __init__(self, *, verbs: Verbs | None = None, **options: Any) -> None:
        super().__init__(**options)
        if verbs is not None:
            self.verbs = verbs

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature of click
        """The names in the order of the panels, then of the table."""
        ordered = [name for names in self.panels.values() for name in names if name in self.verbs]
        return list(dict.fromkeys([*ordered, *self.verbs]))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the signature of click
        """The verb if it was loaded; else a stand-in that knows its help."""
        match self.verbs.get(cmd_name):
            case None:
                return None
            case VerbGroup() as group:
                return LazyGroup(
                    name=cmd_name,
                    help=group.help,
                    no_args_is_help=True,
                    verbs=group.verbs,
                    rich_help_panel=self._panel_of(cmd_name),
                )
            case str() as target:
                stand_in = TyperCommand(cmd_name, help=_docstring(target), rich_help_panel=self._panel_of(cmd_name))
                return self.commands.get(cmd_name) or stand_in

    def _panel_of(self, name: str) -> str | None:
        return next((title for title, names in self.panels.items() if name in names), None)

    def load(self, name: str) -> Any:
        """The group, or the verb, which is imported, so that it can run and knows its options."""
        target = self.verbs[name]
        if isinstance(target, str) and name not in self.commands:
            module, _, function = target.partition(":")
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            with failing_well():
                alone.command(name=name, cls=_Verb)(getattr(import_module(module), function))
            self.commands[name] = get_command(alone)
        return self.get_command(None, name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As of click, of a verb that is loaded first."""
        if args and args[0] in self.verbs:
            self.load(args[0])
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> Any:
        """As of typer, flags without their type."""
        return _without_types(super().get_params(ctx))


class _Verb(TyperCommand):
    """A verb: an error of ours ends it with one line, and its help shows no type beside flags."""

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        with failing_well():
            return super().invoke(ctx)


def _without_types(params: Any) -> Any:
    """Parameters whose flags show no type: `--json <bool>` would look as if it took a value."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


_SOURCES: Final[dict[str, dict[str, str]]] = {}


def _docstring(target: str) -> str:
    """The docstring of "module:function", read from its source: importing 30 modules would take seconds."""
    module, _, function = target.partition(":")
    if module not in _SOURCES:
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        tree = ast.parse(Path(spec.origin).read_bytes())
        functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
        _SOURCES[module] = {node.name: ast.get_docstring(node) or "" for node in functions}
    return _SOURCES[module][function]
