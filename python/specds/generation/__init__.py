"""Speculative `model.generate`: for one call, for all calls of a model, and for a chat.

In the order of the data: `options` checks the options, `kv_cache` copies a cache of the caller,
`streams` aligns the rows of a batch, and `decode` runs one request. With transformers, `arguments`
rejects what drafts cannot serve, `request` prepares a request and `custom_loop` is called by
`model.generate`; `arrays` does all of it without torch. `rehearsal` runs passes for `warmup`. Users
call `generate`, `acceleration`, `chat`, `custom_generate` and `warmup`.
"""

from typing import TYPE_CHECKING

from specds._lazy import lazy
from specds.generation.chat import Chat
from specds.generation.decode import GenerationOutput
from specds.generation.generate import generate
from specds.generation.options import UnsupportedRequestError

if TYPE_CHECKING:
    from specds.generation.acceleration import accelerate, undo

__all__ = ["Chat", "GenerationOutput", "UnsupportedRequestError", "accelerate", "generate", "undo"]

__getattr__ = lazy(__name__, "acceleration")
