"""Models behind Anthropic's Messages as a generator."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(
    generators={"anthropic": "generator:AnthropicKind"}, sections={"generator": "settings:AnthropicSection"}
)
