"""TensorRT-LLM's PyTorch backend: chains for `UserProvidedDecodingConfig`. It was never run.

    config = UserProvidedDecodingConfig(max_draft_len=8, drafter=make_drafter({...}, 8))

Written against the source of the released package; tests hold it against requests of that shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specds.integrations.adapter import Adapter, guarded


class ChainDrafting(Adapter):
    """What a `Drafter` of TensorRT-LLM does; `make_drafter` makes one of its type."""

    def __init__(self, options: Mapping[str, Any], max_draft_len: int, **about: Any) -> None:
        super().__init__(options, **about)
        self.k = max_draft_len

    @guarded(lambda *_, **__: None)
    def prepare_draft_tokens(self, scheduled_requests: Any, resource_manager: Any = None) -> None:
        """Sets `py_draft_tokens` of each request that decodes: a list of at most `k` tokens.

        Args:
            scheduled_requests: Of this step; `generation_requests` are those that decode.
        """
        requests = list(scheduled_requests.generation_requests)
        for request in requests:
            request.py_draft_tokens = []
        self.drafter.sync(
            [request.get_tokens(0) for request in requests],
            names=[str(request.request_id) for request in requests],
        )
        # One place is left for the bonus token.
        budgets = [
            max(r.py_orig_prompt_len + r.py_max_new_tokens - len(r.get_tokens(0)) - 1, 0)
            for r in requests
        ]
        token_ids, numbers, _ = self.drafter.draft_chains(self.k, budgets=budgets)
        rows = zip(requests, token_ids.tolist(), numbers.tolist(), strict=True)
        for request, row, number in rows:
            request.py_draft_tokens = row[:number]


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
