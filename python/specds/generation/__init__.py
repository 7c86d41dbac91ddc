"""What `model.generate` does, by drafts: one call, all calls of a model, a chat.

In the order of the data: `arguments` refuses by name what drafts cannot do, `past` copies a cache
of the caller's, `request` runs one request, `streams` brings the rows of a batch in step. Users
call `calls`, `acceleration`, `chat`, `folder` and `warming`.
"""

from specds.generation.acceleration import accelerate
from specds.generation.arguments import UnsupportedRequestError
from specds.generation.chat import Chat
from specds.generation.generate import generate
from specds.generation.request import GenerationOutput

__all__ = ["Chat", "GenerationOutput", "UnsupportedRequestError", "accelerate", "generate"]
