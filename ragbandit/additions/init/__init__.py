"""The verb `init`: writes a first config.yaml from the models, documents and pipelines of this machine."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(verbs={"Start here: init": "command:init"})
