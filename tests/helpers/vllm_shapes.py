"""The shapes of what vLLM gives its drafters, without vLLM."""

from types import SimpleNamespace

TEXT = [1, 2, 3, 1, 2, 3, 1, 2]
WHOLE = {"step_cost": "ignored", "min_prob": 0.0}  # drafts, whatever a step costs


def runner_of(names):
    """Return a V1 runner that has these requests, without options, and verifies all drafts."""
    about = {"sampling_params": None, "prompt_token_ids": None, "prev_num_draft_len": 64}
    requests = {name: SimpleNamespace(**about) for name in names}
    return SimpleNamespace(requests=requests, input_batch=SimpleNamespace(req_ids=names))


def config_of(max_model_len=32, k=4, ranks=1, is_async=False, schedule=None, **options):
    """Return a configuration of vLLM that includes specds."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            num_speculative_tokens=k,
            enable_adaptive_verification=schedule is None,
            num_speculative_tokens_per_batch_size=schedule,
        ),
        scheduler_config=SimpleNamespace(
            max_num_seqs=8, max_num_batched_tokens=64, async_scheduling=is_async
        ),
        model_config=SimpleNamespace(
            max_model_len=max_model_len, get_vocab_size=lambda: 100, tokenizer=None
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
        additional_config={"specds": options},
    )


def step_of(begun=(), scheduled=None, finished=(), invalid=None, prompts=None):
    """Return what the scheduler asks of a V2 runner; `begun` has extra arguments by name.

    `prompts` has the tokens of each request before its first step.
    """
    new = [
        SimpleNamespace(
            req_id=name,
            sampling_params=SimpleNamespace(extra_args=extra),
            prompt_token_ids=None,
            prefill_token_ids=(prompts or {}).get(name),
        )
        for name, extra in dict(begun).items()
    ]
    return SimpleNamespace(
        scheduled_new_reqs=new,
        scheduled_spec_decode_tokens=scheduled or {},
        finished_req_ids=set(finished),
        num_invalid_spec_tokens=invalid,
    )
