"""Storage: the database, with its tables, decisions, ledgers, queues and access rights."""
