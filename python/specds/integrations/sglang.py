"""SGLang: trees, in place of the corpus of its n-gram speculation.

    SPECDS_CONFIG='{"datastore": "chat.specds"}' python -m sglang.launch_server --model-path MODEL \
        --speculative-algorithm NGRAM --speculative-num-draft-tokens 16

SGLang calls `register` in each of its processes, through our entry point; without ``SPECDS_CONFIG``
it changes nothing. Its server then has predicted outputs, as in `specds.integrations.openai`.
`python -m specds.integrations.sglang --check` reports whether the installed SGLang is compatible.
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

from specds.constraints import Constraint, constraint_of_engine
from specds.integrations.adapter import (
    Adapter,
    IncompatibleError,
    guarded,
    parse_request_options,
    resolve,
)

CONFIG = "SPECDS_CONFIG"
"""The environment variable with the JSON configuration of `EngineDrafter`."""

_WORKER = "sglang.srt.speculative.ngram_worker"
_SERVER = "sglang.srt.entrypoints.http_server"

Trees = tuple[NDArray[np.int64], NDArray[np.bool_]]


def _fill(corpus: SpecdsCorpus, _: Any, batch_tokens: Sequence[Sequence[int]], __: Any) -> Trees:
    """Return trees without a draft: the last token, filled up with children."""
    n = corpus.num_nodes
    token_ids = np.tile(np.arange(-1, n - 1), (len(batch_tokens), 1))
    token_ids[:, 0] = [tokens[-1] for tokens in batch_tokens]
    mask: NDArray[np.bool_] = np.eye(n, dtype=np.bool_)
    mask[:, 0] = True
    return token_ids.ravel(), np.tile(mask.ravel(), len(batch_tokens))


class SpecdsCorpus(Adapter):
    """Replacement for the corpus of SGLang's n-gram worker, which drafts trees for a batch.

    Args:
        num_nodes: Nodes of a tree, including the last token of the context.

    Raises:
        ValueError: `Adapter` rejects the configuration, or SGLang does not support it.
    """

    has_tenants = True

    def __init__(self, options: Mapping[str, Any], num_nodes: int, **about: Any) -> None:
        if options.get("step_cost", "ignored") != "ignored":
            raise ValueError("SGLang does not support `step_cost`: all its trees have one size")
        super().__init__({"recycle_predictions": False, **options}, num_nodes - 1, **about)
        self.num_nodes = num_nodes
        self._lengths: dict[str, int] = {}
        self._requests: dict[str, Any] = {}

    @guarded(lambda corpus, _: corpus.num_nodes)
    def begin(self, requests: Sequence[Any]) -> int:
        """Read the options of new requests, and take those of the batch, before `batch_get`.

        Returns:
            Number of last tokens of each context that `batch_get` needs.
        """
        # A client may name a request as the last one of its own, or of another tenant.
        before, self._requests = self._requests, {request.rid: request for request in requests}
        rows = self._requests.items()
        self.erase_match_state([name for name, it in rows if before.get(name, it) is not it])
        begun = [request for request in requests if request.rid not in self._lengths]
        if not (begun and self.drafts):
            return self.num_nodes
        for request in begun:
            self.request_options[request.rid] = _request_options(request)
        return sys.maxsize

    def batch_get(
        self,
        req_ids: Sequence[str],
        batch_tokens: Sequence[Sequence[int]],
        total_lens: Sequence[int],
    ) -> Trees:
        """Draft a tree for each row.

        Args:
            batch_tokens: The last tokens of each context.
            total_lens: Lengths of the whole contexts.

        Returns:
            Tokens of the trees, int64 `(rows * n,)`, and their masks, bool `(rows * n * n,)`:
            whether node j is node i or an ancestor of it.
        """
        fill = SpecdsCorpus._drafted if self.drafts else _fill
        trees: Trees = fill(self, req_ids, batch_tokens, total_lens)
        if self.group is not None:
            import torch

            # All ranks must verify the same trees.
            for part in map(torch.from_numpy, trees):
                torch.distributed.broadcast(part, self.group.first_rank, group=self.group.cpu_group)
        return trees

    @guarded(_fill)
    def _drafted(
        self,
        req_ids: Sequence[str],
        batch_tokens: Sequence[Sequence[int]],
        total_lens: Sequence[int],
    ) -> Trees:
        rows = zip(req_ids, batch_tokens, total_lens, strict=True)
        new = [self._new_tokens(*row) for row in rows]
        starts = [total - len(tokens) for tokens, total in zip(new, total_lens, strict=True)]
        self.sync(new, names=req_ids, starts=starts)
        with self.timed_draft():
            self.choose_allowed(map(self._constraint, req_ids, total_lens))
            self._lengths.update(zip(req_ids, total_lens, strict=True))
            token_ids, _, mask = self.drafter.draft_trees(self.num_nodes)
            # A row without a session has no last token of its own.
            token_ids[:, 0] = [tokens[-1] for tokens in batch_tokens]
            return token_ids.ravel(), mask.ravel()

    def _new_tokens(self, req_id: str, tokens: Sequence[int], total: int) -> Sequence[int]:
        """Return the tokens that the drafter has not seen; all tokens if there is a gap."""
        new = total - self._lengths.get(req_id, 0)
        return tokens[-new:] if 0 < new < len(tokens) else tokens

    def _constraint(self, req_id: str, total: int) -> Constraint | None:
        """Return what the grammar of a request allows, None where it lags behind the text."""
        request: Any = self._requests.get(req_id)
        grammar: Any = getattr(request, "grammar", None)
        if hasattr(grammar, "tokens_after_end"):  # reasoning comes first, without the grammar
            grammar = grammar.grammar if grammar.tokens_after_end >= 0 else None
        if grammar is None or grammar.is_terminated():
            return None
        known = len(request.origin_input_ids_unpadded) + len(request.output_ids)
        return constraint_of_engine(grammar, self.max_nodes) if known == total else None

    @guarded(lambda *_: None)
    def observe_logits(self, logits: Any) -> None:
        """Read the target's logits at all nodes of the last trees, `(rows * n, vocab_size)`."""
        k = self.drafter.num_predictions
        predictions = logits.topk(k, dim=-1).indices.cpu().numpy()
        self.drafter.observe_predictions(predictions, self.num_nodes)

    def erase_match_state(self, req_ids: Sequence[str]) -> None:
        self.drafter.end(list(req_ids))
        for req_id in req_ids:
            self._lengths.pop(req_id, None)
            self.request_options.pop(req_id, None)

    def reset(self) -> None:
        self.drafter.end_all()
        self._lengths.clear()
        self.request_options.clear()

    def synchronize(self) -> None:
        """Do nothing: calls are synchronous."""

    def batch_put(self, batch_tokens: Sequence[Sequence[int]]) -> None:
        """Do nothing: the next `batch_get` has the same tokens."""


def _request_options(request: Any) -> dict[str, Any] | None:
    """Return the options of a request; a part of SGLang's cache of its own makes it a tenant."""
    options = parse_request_options(request.sampling_params.custom_params)
    if options is not None and options.get("tenant") in (None, ""):
        own = (request.extra_key or "").removesuffix(request.lora_id or "")
        options["tenant"] = request.cache_salt or own
    return options


def register() -> None:
    """Install the plug-in: replace the corpus of the n-gram worker."""
    if not os.environ.get(CONFIG):
        return
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        prepare = f"{_WORKER}.NGRAMWorker._prepare_draft_tokens"
        HookRegistry.register(f"{_WORKER}.NgramCorpus", _replacement, HookType.REPLACE)
        HookRegistry.register(prepare, _begin, HookType.BEFORE)
        HookRegistry.register(f"{_SERVER}._setup_and_run_http_server", _serve, HookType.BEFORE)
    except Exception as error:  # a plug-in that raises could end the engine
        Adapter.log.warning("specds cannot draft in this version of SGLang: %s", error)


def _replacement(**arguments: Any) -> SpecdsCorpus:
    """Make the worker's corpus from the server's global arguments.

    Raises:
        ValueError: SGLang would verify trees as chains, as recurrent layers of some kinds do, or
            other trees in each stage of a pipeline.
        IncompatibleError: SGLang would pass no options of requests.
    """
    if arguments.get("max_bfs_breadth") == 1:
        raise ValueError(
            "specds drafts trees, which recurrent layers verify as chains with "
            "--speculative-ngram-max-bfs-breadth 1: use 2 or more"
        )
    resolve(NEEDED[0])
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.runtime_context import get_parallel, get_server_args

    server, ranks = get_server_args(), get_parallel().tp_group
    if server.pp_size > 1:
        raise ValueError("specds does not support --pp-size: each stage would verify other trees")
    corpus = SpecdsCorpus(
        json.loads(os.environ[CONFIG]),
        server.speculative_num_draft_tokens,
        vocab_size=ModelConfig.from_server_args(server).vocab_size,
        tokenizer=server.tokenizer_path or server.model_path,
        group=ranks if ranks.world_size > 1 else None,
    )
    if corpus.drafts and corpus.drafter.num_predictions:
        worker = importlib.import_module(_WORKER)
        worker.eagle_sample = _observed(worker.eagle_sample, corpus.observe_logits)  # type: ignore[attr-defined]
    return corpus


def _serve(*_: Any, **__: Any) -> None:
    """Add predicted outputs to the server, below the check of API keys that it adds next."""
    from specds.integrations.openai import PredictedOutput

    app: Any = importlib.import_module(_SERVER).app
    about = {"carrier": "custom_params", "ids_field": "return_output_ids_in_sglext"}
    app.add_middleware(PredictedOutput, **about)


def _begin(worker: Any, batch: Any) -> None:
    """Pass the requests of a batch to the corpus, and the number of tokens it needs to SGLang."""
    worker.max_trie_depth = worker.ngram_corpus.begin(batch.reqs)


def _observed(sample: Callable[..., Any], observe: Callable[[Any], None]) -> Callable[..., Any]:
    """Return SGLang's acceptance preceded by `observe(logits)`."""

    def eagle_sample(verify_input: Any, batch: Any, logits_output: Any, *a: Any, **k: Any) -> Any:
        observe(logits_output.next_token_logits)
        return sample(verify_input, batch, logits_output, *a, **k)

    return eagle_sample


NEEDED = (
    f"{_WORKER}:NGRAMWorker._prepare_draft_tokens",
    f"{_WORKER}:NgramCorpus",
    f"{_WORKER}:eagle_sample",
    f"{_SERVER}:_setup_and_run_http_server",
    f"{_SERVER}:app",
    "sglang.srt.configs.model_config:ModelConfig.from_server_args",
    "sglang.srt.plugins.hook_registry:HookRegistry",
    "sglang.srt.runtime_context:get_parallel",
    "sglang.srt.runtime_context:get_server_args",
)
"""Names of SGLang that `register` and the corpus use."""


def missing() -> list[str]:
    """Return the names in `NEEDED` that the installed SGLang lacks, with the error of each."""
    lacks = []
    for name in NEEDED:
        try:
            resolve(name)
        except IncompatibleError as error:
            lacks.append(str(error))
    return lacks


if __name__ == "__main__":
    if sys.argv[1:] != ["--check"]:
        sys.exit("usage: python -m specds.integrations.sglang --check")
    lacks = missing()
    sys.exit("\n".join(["this SGLang is not compatible:", *lacks]) if lacks else None)
