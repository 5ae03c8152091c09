"""Archive: decisions that are done with, moved out of the database into sealed Parquet segments.

segments   what a segment is; writing one, reading one
moving     from the database into a new segment
reading    segments and database as one

The reasons stand in docs/decisions/archive-by-segments.md.
"""
