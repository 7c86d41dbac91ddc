"""Speculative `model.generate`: for one call, for all calls of a model, and for a chat.

In the order of the data: `arguments` rejects what drafts cannot serve, `options` checks the rest,
`kv_cache` copies a cache of the caller, `request` runs one request, and `streams` aligns the rows
of a batch. Users call `generate`, `acceleration`, `chat`, `custom_generate` and `warmup`.
"""

from specds.generation.acceleration import accelerate, undo
from specds.generation.arguments import UnsupportedRequestError
from specds.generation.chat import Chat
from specds.generation.generate import generate
from specds.generation.request import GenerationOutput

__all__ = [
    "Chat",
    "GenerationOutput",
    "UnsupportedRequestError",
    "accelerate",
    "generate",
    "undo",
]
