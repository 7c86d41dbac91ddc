"""The shapes of what vLLM gives its drafters, without vLLM."""

from types import SimpleNamespace


def runner_of(names):
    """Returns a V1 runner that has these requests, without per-request options."""
    requests = {name: SimpleNamespace(sampling_params=None) for name in names}
    return SimpleNamespace(requests=requests, input_batch=SimpleNamespace(req_ids=names))


def config_of(max_model_len=32, k=4, ranks=1, **options):
    """Return a configuration of vLLM that includes specds."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            num_speculative_tokens=k, enable_adaptive_verification=True
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=8, max_num_batched_tokens=64),
        model_config=SimpleNamespace(
            max_model_len=max_model_len, get_vocab_size=lambda: 100, tokenizer=None
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
        additional_config={"specds": options},
    )
