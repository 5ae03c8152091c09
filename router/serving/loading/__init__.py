"""Loading: the policy versions and snapshots that this process decides with, as the database names them."""
