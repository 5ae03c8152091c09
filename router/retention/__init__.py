"""Retention: how long what is stored stays, and where.

archiving   decisions that are done with leave the database for sealed segments
erasure     texts are made blank, in the database and in the archive
"""
