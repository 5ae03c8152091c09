"""Archive: decisions that are done with, as sealed Parquet segments (`router/retention/archiving.py` makes them).

segments   what a segment is; writing one, reading one
reading    segments and database as one

The reasons stand in docs/decisions/archive-by-segments.md.
"""
