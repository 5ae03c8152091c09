"""SQL: tables, engine and transactions, PostgreSQL's time-outs, bulk inserts, leases, counters, when rows close."""
