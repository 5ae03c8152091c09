"""Learning: feedback becomes a reward, an example, an update in the ledger and a snapshot; status and audit."""
