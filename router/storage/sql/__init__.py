"""SQL: tables, connections and transactions, bulk inserts, leases, counters, and the rows of `waiting`."""
