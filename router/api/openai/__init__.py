"""OpenAI's HTTP interface, as far as chat clients use it: models, chat completions and responses."""
