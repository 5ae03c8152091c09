"""Ratings in other services: a learner fetches their lists, and stores each rating as feedback once."""
