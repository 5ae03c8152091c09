"""Features that can be deleted: one folder each, found by `ragbandit.shared.additions`. See docs/architecture.md."""
