"""What a replay reads: rows in memory, or pieces of a Parquet file or of a ledger that need not fit."""
