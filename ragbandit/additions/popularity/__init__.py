"""The policy `popularity` (Adaptive Retrieval), and `ragbandit index counts`, which counts mentions for it."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(policies={"popularity": "policy:Popularity"}, verbs={"index counts": "verb:counts"})
