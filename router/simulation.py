"""Replays a full-information table through the policy and learner code that serves live traffic."""

__all__: list[str] = []
