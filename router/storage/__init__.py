"""SQL: tables, rows, decisions and the ledger; files that are written whole or not at all."""
