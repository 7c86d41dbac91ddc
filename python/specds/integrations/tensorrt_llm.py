"""TensorRT-LLM's PyTorch backend: chains for `UserProvidedDecodingConfig`.

    config = UserProvidedDecodingConfig(max_draft_len=8, drafter=make_drafter({...}, 8))

It was never run: it follows the source of the released package, and tests use fakes of its shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specds.integrations.adapter import Adapter, guarded


class ChainDrafting(Adapter):
    """The methods of a TensorRT-LLM `Drafter`; `make_drafter` makes one of its type."""

    def __init__(self, options: Mapping[str, Any], max_draft_len: int, **about: Any) -> None:
        super().__init__(options, **about)
        self.k = max_draft_len

    @guarded(lambda *_, **__: None)
    def prepare_draft_tokens(self, scheduled_requests: Any, resource_manager: Any = None) -> None:
        """Sets `py_draft_tokens`, at most `k` tokens, of each request that decodes."""
        requests = list(scheduled_requests.generation_requests)
        for request in requests:
            request.py_draft_tokens = []
        self.drafter.sync(
            [request.get_tokens(0) for request in requests],
            names=[str(request.request_id) for request in requests],
        )
        num_left = [
            r.py_orig_prompt_len + r.py_max_new_tokens - len(r.get_tokens(0)) for r in requests
        ]
        for request, draft in zip(requests, self.chains(self.k, num_left), strict=True):
            request.py_draft_tokens = draft


def make_drafter(options: Mapping[str, Any], max_draft_len: int, **about: Any) -> Any:
    """A `Drafter` of TensorRT-LLM's; the arguments are those of `ChainDrafting`.

    Raises:
        ImportError: TensorRT-LLM is not installed.
    """
    from tensorrt_llm._torch.speculative.drafter import Drafter

    class SpecdsDrafter(ChainDrafting, Drafter):  # type: ignore[misc]
        def __init__(self) -> None:
            Drafter.__init__(
                self, max_draft_len=max_draft_len, max_total_draft_tokens=max_draft_len
            )
            ChainDrafting.__init__(self, options, max_draft_len, **about)

    return SpecdsDrafter()
