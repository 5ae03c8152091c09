"""The part of OpenAI's HTTP interface that chat clients use: models and chat completions, in front of our decisions."""
