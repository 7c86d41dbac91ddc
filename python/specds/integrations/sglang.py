"""SGLang: trees, in place of the corpus of its n-gram speculation.

    SPECDS_CONFIG='{"datastore": "chat.specds"}' python -m sglang.launch_server --model-path MODEL \
        --speculative-algorithm NGRAM --speculative-num-draft-tokens 16 \
        --speculative-ngram-max-trie-depth 1024

SGLang calls `register` in each of its processes, by our entry point; without ``SPECDS_CONFIG`` it
changes nothing. The algorithm ``SPECDS`` also gets whole prompts and the target's predictions.
`python -m specds.integrations.sglang --check` tells whether the installed SGLang fits.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specds.integrations.adapter import Adapter, guarded

CONFIG = "SPECDS_CONFIG"
"""The environment variable with the JSON configuration of `EngineDrafter`."""

_WORKER = "sglang.srt.speculative.ngram_worker"


def _fill(
    corpus: Corpus, _: Any, batch_tokens: Sequence[Sequence[int]], __: Any
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Trees without a draft: the last token, filled up with children."""
    n = corpus.num_nodes
    token_ids = np.tile(np.arange(-1, n - 1), (len(batch_tokens), 1))
    token_ids[:, 0] = [tokens[-1] for tokens in batch_tokens]
    mask: NDArray[np.int64] = np.eye(n, dtype=np.int64)
    mask[:, 0] = 1
    return token_ids.ravel(), np.tile(mask.ravel(), len(batch_tokens))


class Corpus(Adapter):
    """Replaces the corpus of SGLang's n-gram worker: drafts trees for a batch.

    Args:
        num_nodes: Nodes of a tree, including the last token of the context.

    Raises:
        ValueError: As `Adapter`, or the configuration does not fit SGLang.
    """

    def __init__(self, options: Mapping[str, Any], num_nodes: int, **about: Any) -> None:
        if options.get("step_cost") is not None:
            raise ValueError("`step_cost` does not fit SGLang: all its trees have one size")
        super().__init__(options, num_nodes - 1, **about)
        self.num_nodes = num_nodes
        self._lengths: dict[str, int] = {}

    @guarded(_fill)
    def batch_get(
        self,
        req_ids: Sequence[str],
        batch_tokens: Sequence[Sequence[int]],
        total_lens: Sequence[int],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Drafts a tree for each row.

        Args:
            batch_tokens: The last tokens of each context.
            total_lens: The lengths of the whole contexts.

        Returns:
            The tokens of the trees, int64 `(rows * n,)`, and their masks, int64 `(rows * n * n,)`:
            whether node j is node i or an ancestor of it.
        """
        rows = zip(req_ids, batch_tokens, total_lens, strict=True)
        news = [self._news(*row) for row in rows]
        starts = [total - len(tokens) for tokens, total in zip(news, total_lens, strict=True)]
        self.drafter.sync(news, starts=starts, names=req_ids)
        self.begin_draft()
        self._lengths.update(zip(req_ids, total_lens, strict=True))
        token_ids, _, mask = self.drafter.draft_trees(self.num_nodes)
        # A row without a session has no last token of its own.
        token_ids[:, 0] = [tokens[-1] for tokens in batch_tokens]
        self.end_draft()
        return token_ids.ravel(), mask.ravel().astype(np.int64)

    def _news(self, req_id: str, tokens: Sequence[int], total: int) -> Sequence[int]:
        """The tokens that the drafter has not seen; all tokens if there is a gap."""
        new = total - self._lengths.get(req_id, 0)
        return tokens[-new:] if 0 < new < len(tokens) else tokens

    def is_known(self, req_id: str) -> bool:
        """Whether the last tokens of this request are enough."""
        return req_id in self._lengths

    @guarded(lambda *_: None)
    def observe_logits(self, logits: Any) -> None:
        """Takes the target's logits at all nodes of the last trees, `(rows * n, vocab_size)`."""
        k = self.drafter.num_predictions
        if k:
            predictions = logits.topk(k, dim=-1).indices.cpu().numpy()
            self.drafter.observe_predictions(predictions, self.num_nodes)

    def erase_match_state(self, req_ids: Sequence[str]) -> None:
        self.drafter.end(list(req_ids))
        for req_id in req_ids:
            self._lengths.pop(req_id, None)

    def reset(self) -> None:
        self.drafter.end_all()
        self._lengths.clear()

    def synchronize(self) -> None:
        """Does nothing: calls are synchronous."""

    def batch_put(self, batch_tokens: Sequence[Sequence[int]]) -> None:
        """Does nothing: the next `batch_get` has the same tokens."""


def register() -> None:
    """The entry point of the plug-in: replaces the corpus and adds the algorithm ``SPECDS``."""
    if not os.environ.get(CONFIG):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    HookRegistry.register(f"{_WORKER}.NgramCorpus", _replacement, HookType.REPLACE)
    entry = SpeculativeAlgorithm.register("SPECDS", supports_overlap=True, spec_class=_algorithm())
    entry(lambda server_args: _worker())


def _replacement(**arguments: Any) -> Corpus:
    """Makes the worker's corpus, from the server's global arguments."""
    from sglang.srt.runtime_context import get_server_args

    server = get_server_args()
    return Corpus(
        json.loads(os.environ[CONFIG]),
        server.speculative_num_draft_tokens,
        tokenizer=server.tokenizer_path or server.model_path,
        num_ranks=server.tp_size,
    )


def _algorithm() -> type:
    """The class of the algorithm ``SPECDS``, which is like NGRAM."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    class Specds(CustomSpecAlgo):  # type: ignore[misc]
        def is_ngram(self) -> bool:
            return True

        def has_draft_kv(self) -> bool:
            return False

        def handle_server_args(self, server_args: Any) -> None:
            from sglang.srt.arg_groups.speculative_hook import _handle_ngram

            _handle_ngram(server_args)

        # The scheduler calls these three, which `CustomSpecAlgo` lacks.
        create_future_map = SpeculativeAlgorithm.create_future_map

        def need_topk(self) -> bool:
            return False

        def carries_draft_hidden_states(self) -> bool:
            return False

    return Specds


def _worker() -> type:
    """The n-gram worker, with whole contexts and the target's predictions."""
    from sglang.srt.speculative import ngram_worker as worker

    class SpecdsWorker(worker.NGRAMWorker):  # type: ignore[misc]
        def __init__(self, server_args: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(server_args, *args, **kwargs)
            corpus: Corpus = self.ngram_corpus
            worker.eagle_sample = _observed(worker.eagle_sample, corpus.observe_logits)

        def _prepare_draft_tokens(self, batch: Any) -> Any:
            is_known = self.ngram_corpus.is_known
            has_new = not all(is_known(request.rid) for request in batch.reqs)
            self.max_trie_depth = sys.maxsize if has_new else self.draft_token_num
            return super()._prepare_draft_tokens(batch)

    return SpecdsWorker


def _observed(sample: Callable[..., Any], observe: Callable[[Any], None]) -> Callable[..., Any]:
    """SGLang's acceptance, preceded by `observe(logits)`."""

    def eagle_sample(verify_input: Any, batch: Any, logits_output: Any, *a: Any, **k: Any) -> Any:
        observe(logits_output.next_token_logits)
        return sample(verify_input, batch, logits_output, *a, **k)

    return eagle_sample


NEEDED = (
    (_WORKER, "NGRAMWorker"),
    (_WORKER, "NgramCorpus"),
    (_WORKER, "eagle_sample"),
    ("sglang.srt.plugins.hook_registry", "HookRegistry"),
    ("sglang.srt.runtime_context", "get_server_args"),
    ("sglang.srt.speculative.spec_registry", "CustomSpecAlgo"),
    ("sglang.srt.arg_groups.speculative_hook", "_handle_ngram"),
)
"""The names of SGLang that `register` and the worker use."""


def missing() -> list[str]:
    """The names in `NEEDED` that the installed SGLang lacks, and why."""
    lacks = []
    for module, name in NEEDED:
        try:
            getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            lacks.append(f"{module}.{name}: {error}")
    return lacks


if __name__ == "__main__":
    if sys.argv[1:] != ["--check"]:
        sys.exit("usage: python -m specds.integrations.sglang --check")
    lacks = missing()
    sys.exit("\n".join(["this SGLang does not fit:", *lacks]) if lacks else None)
