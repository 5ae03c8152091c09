"""Settings of the generator "openai"."""

from ragbandit.router.config.settings import Settings


def settings(**openai):
    openai.setdefault("base_url", "http://127.0.0.1:9/v1")
    return Settings(generator={"name": "openai", "model": "gpt", "openai": openai}).generator
