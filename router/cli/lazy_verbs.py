"""Groups of verbs that are listed without importing them, since the modules of all verbs take seconds to load."""

import ast
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from ragbandit.router.cli.console import exit_on_error, given_config
from ragbandit.shared.additions import with_faults


class VerbGroup(NamedTuple):
    help: str
    verbs: Mapping[str, str]


#: name of a verb -> "module:function", or a group of such verbs. The docstring of the function is the verb's help
Verbs = Mapping[str, str | VerbGroup]


class LazyGroup(TyperGroup):
    """A group that lists its verbs without importing them, and imports a verb when it is called."""

    #: verbs of this group: the class of the root group sets them, nested groups get them in `__init__`
    verbs: Verbs
    #: heading in the help -> verbs listed under it
    panels: Mapping[str, Collection[str]] = MappingProxyType({})

    def __init__(self, *, verbs: Verbs | None = None, **options: Any) -> None:
        super().__init__(**options)
        if verbs is not None:
            self.verbs = verbs

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature of click
        ordered = [name for names in self.panels.values() for name in names if name in self.verbs]
        return list(dict.fromkeys([*ordered, *self.verbs]))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the signature of click
        """Return the verb, or a placeholder with its help if it is not loaded yet; or the group; None if unknown."""
        target = self.verbs.get(cmd_name)
        panel = next((title for title, names in self.panels.items() if cmd_name in names), None)
        if isinstance(target, VerbGroup):
            options: dict[str, Any] = {"no_args_is_help": True, "rich_help_panel": panel}
            return LazyGroup(name=cmd_name, help=target.help, verbs=target.verbs, **options)
        if target is None or cmd_name in self.commands:
            return self.commands.get(cmd_name)
        return TyperCommand(cmd_name, help=_docstring(target), rich_help_panel=panel)

    def load(self, name: str) -> Any:
        """Import the verb `name` with its options. Returns the command, or a `LazyGroup` if `name` is a group."""
        target = self.verbs[name]
        if isinstance(target, str) and name not in self.commands:
            module, _, function = target.partition(":")
            app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            with exit_on_error():
                app.command(name=name, cls=_Verb)(getattr(import_module(module), function))
            self.commands[name] = get_command(app)
        return self.get_command(None, name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in self.verbs:
            self.load(args[0])
        elif args and not args[0].startswith("-"):
            paths = {name: name for name in self.verbs}
            for group, target in self.verbs.items():
                nested = target.verbs if isinstance(target, VerbGroup) else {}
                paths = {verb: f"{group} {verb}" for verb in nested} | paths
            similar = get_close_matches(args[0].lower(), paths, n=1)
            remedy = f"did you mean `{ctx.command_path} {paths[similar[0]]}`?" if similar else "see --help"
            ctx.fail(with_faults(f"there is no command {args[0]!r:.80}; {remedy}"))
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))


class _Verb(TyperCommand):
    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        token = given_config.set(ctx.params.get("config"))
        try:
            with exit_on_error():
                return super().invoke(ctx)
        finally:
            given_config.reset(token)


def _without_types(params: Any) -> Any:
    """Remove the type of flags from the help: `--json <bool>` would look as if the flag needed a value."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


def _docstring(target: str) -> str:
    """The docstring of "module:function", read from the source, since importing 30 modules would take seconds."""
    module, _, function = target.partition(":")
    return _docstrings(module)[function]


@cache
def _docstrings(module: str) -> dict[str, str]:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_bytes())
    return {node.name: ast.get_docstring(node) or "" for node in tree.body if isinstance(node, ast.FunctionDef)}
