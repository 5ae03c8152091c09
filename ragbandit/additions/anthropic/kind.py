"""The generator "anthropic" as a kind."""

from ragbandit.additions.anthropic.generator import AnthropicGenerator
from ragbandit.workers.setup.generator_kinds import ServerKind


class AnthropicKind(ServerKind):
    generator = AnthropicGenerator
