"""The generator "local": language models that run in a worker's own process."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(generators={"local": "kind:LocalKind"}, sections={"generator": "settings:LocalSection"})
