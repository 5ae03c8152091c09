"""Modules that have moved since the earlier revision, so that one measurement runs in both trees."""

__all__ = ["MOVED"]

#: where a module is now -> where it was
MOVED = {
    "ragbandit.client": "ragbandit.router.client",
    "ragbandit.shared.errors": "ragbandit.router.errors",
    "ragbandit.shared.files.atomic": "ragbandit.router.storage.files.atomic",
    "ragbandit.shared.process_identity": "ragbandit.router.process_identity",
    "ragbandit.shared.types": "ragbandit.router.types",
    "ragbandit.testing.policy_examples": "ragbandit.router.policies.examples",
}
