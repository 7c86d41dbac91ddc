"""Generation with drafts, without torch: `generate`, `Chat`, and the decoding loop below them.

In the order of the data: `options` checks the options, `target` asks the model's framework for a
request, `arrays` makes that of a GGUF file, with the samplers and stops of `sampling` and the
`processors`. `decode` runs one request: `loop` drafts by `budget`, verifies by a `runner`, such as
`native`, and accepts by `acceptance`; `streams` aligns the rows of a batch, and `stats` counts.
What needs torch is `specds.transformers`.
"""

from specds.generation.chat import Chat
from specds.generation.decode import GenerationOutput
from specds.generation.generate import generate
from specds.generation.options import UnsupportedRequestError

__all__ = ["Chat", "GenerationOutput", "UnsupportedRequestError", "generate"]
