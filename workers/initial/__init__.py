"""First configuration: what is on this machine, and the `config.yaml` that suits it."""
