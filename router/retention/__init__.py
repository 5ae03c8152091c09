"""Retention: how long what is stored stays, and where.

archiving   decisions that are done with leave the database for sealed segments
erasure     texts are made blank, in the database and in the archive
taking      a backup: the store is copied whole while it is in use
restoring   a backup is put into an empty place
manifest, places, database_copy: what a backup is made of
"""
