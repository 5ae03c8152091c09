"""Calls to model servers: connections, options, replies, failures."""

from typing import Literal

#: openai, mistral, deepseek: the vendor's own service. gemini, bedrock: Google's and Amazon's form of chat completions.
#: anthropic: a server of Anthropic's models. template: a server that fills a model's chat template (vLLM, llama.cpp,
#: SGLang, Ollama). unknown: any other, for example a proxy in front of several vendors
Kind = Literal["openai", "anthropic", "mistral", "deepseek", "gemini", "bedrock", "template", "unknown"]
