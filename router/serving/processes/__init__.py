"""Several processes on one port, with one encoder process for all."""
