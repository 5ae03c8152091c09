"""Ratings: whose judgement of a decision counts, and what a model's score is worth in people's judgements."""
