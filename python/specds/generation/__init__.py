"""How is `model.generate` called, and what comes back: one call, a loop for transformers, a chat.

In the order of the data: `arguments` refuses by name what drafts cannot do, `past` takes over a
cache of the caller's, `request` runs one request, `streams` brings the rows of a batch in step;
`calls`, `acceleration`, `chat`
and `folder` are what users call.
"""

from specds.generation.acceleration import accelerate
from specds.generation.arguments import UnsupportedRequestError
from specds.generation.calls import custom_generate, generate
from specds.generation.chat import Chat
from specds.generation.request import GenerationOutput

__all__ = [
    "Chat",
    "GenerationOutput",
    "UnsupportedRequestError",
    "accelerate",
    "custom_generate",
    "generate",
]
