"""The shapes of what vLLM gives its drafters, without vLLM."""

from types import SimpleNamespace

import torch


def config_of(max_model_len=32, k=4, ranks=1, **options):
    """What vLLM is configured with, ours among it."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            num_speculative_tokens=k, enable_adaptive_verification=True
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
        model_config=SimpleNamespace(
            max_model_len=max_model_len, get_vocab_size=lambda: 100, tokenizer=None
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
        additional_config={"specds": options},
    )


def states_of(texts, max_model_len=32):
    """The requests of the second runner: the text at each place of a batch of eight."""
    tokens = torch.full((8, max_model_len), 7, dtype=torch.int32)
    lengths = torch.zeros(8, dtype=torch.int32)
    for place, text in texts.items():
        tokens[place, : len(text)] = torch.tensor(text, dtype=torch.int32)
        lengths[place] = len(text)
    gpu = [SimpleNamespace(gpu=tensor) for tensor in (tokens, lengths)]
    return SimpleNamespace(all_token_ids=gpu[0], total_len=gpu[1])
