"""Modules that have moved since the earlier revision, so that one measurement runs in both trees."""

#: where a module is now -> where it was
MOVED = {
    "ragbandit.client": "ragbandit.router.client",
    "ragbandit.router.policies.kinds.fixed": "ragbandit.router.policies.fixed",
    "ragbandit.router.queue.jobs": "ragbandit.router.jobs.queue",
    "ragbandit.router.queue.notifier": "ragbandit.router.jobs.memory_jobs",
    "ragbandit.router.queue.redis_server": "ragbandit.router.jobs.redis_server",
    "ragbandit.router.serving.checks.fields": "ragbandit.router.serving.field_checks",
    "ragbandit.router.serving.checks.reports": "ragbandit.router.serving.validation",
    "ragbandit.router.serving.deciding.live": "ragbandit.router.serving.versions.live",
    "ragbandit.router.serving.deciding.service": "ragbandit.router.serving.service",
    "ragbandit.router.storage.decisions.store": "ragbandit.router.storage.decisions",
    "ragbandit.shared.errors": "ragbandit.router.errors",
    "ragbandit.shared.files": "ragbandit.router.storage.files.atomic",
    "ragbandit.shared.child_process": "ragbandit.router.process_identity",
    "ragbandit.shared.types": "ragbandit.router.types",
    "ragbandit.testing.policy_examples": "ragbandit.router.policies.examples",
}
