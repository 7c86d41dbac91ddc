"""Chains of models that keep a recurrent state: texts, states and refusals."""

import random
from functools import partial

import pytest
import torch
from transformers import (
    DynamicCache,
    FalconMambaConfig,
    FalconMambaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
)
from transformers.models.lfm2 import modeling_lfm2

from models import (
    GREEDY,
    HYBRIDS,
    SAMPLING,
    VOCAB_SIZE,
    build,
    mixed_drafter,
    oracle_drafter,
    plain_generate,
    prompt,
    tiny_model,
    tree_generate,
)
from specds import FusedDrafter, accelerate
from specds._core import TokenTree
from specds.generation import UnsupportedRequestError, generate
from specds.generation.runner import UnsupportedModelError
from specds.papers import HierarchyDrafter
from specds.transformers.verify.cache import CACHE_NAME
from specds.transformers.verify.chain import ChainRunner, restored
from specds.transformers.verify.generic import Runner
from specds.transformers.verify.support import check_model

MODES = pytest.mark.parametrize("mode", [GREEDY, SAMPLING], ids=["greedy", "sampling"])
MODELS = pytest.mark.parametrize("family", HYBRIDS)


def partly_wrong(text):
    return [(token + (place % 4 == 0)) % VOCAB_SIZE for place, token in enumerate(text)]


def tree_ids(tree, nodes):
    return torch.from_numpy(tree.token_ids[[*nodes]].astype("int64"))[None]


def chain(token_ids):
    return TokenTree(token_ids, range(-1, len(token_ids) - 1))


@torch.no_grad()
def largest_error(model, num_rows, seed=0):
    """Verifies random parts of known texts; returns the error in parts of the logits' spread."""
    rng = random.Random(seed)
    lengths = [rng.randint(5, 40) for _ in range(num_rows)]
    texts = [prompt(length + 80, seed=row) for row, length in enumerate(lengths)]
    plain = [model(text, use_cache=False).logits[0] for text in texts]
    runner = ChainRunner(model, prompt_length=40, max_length=120, max_nodes=8, num_rows=num_rows)
    runner.prefill_rows([text[:, :length] for text, length in zip(texts, lengths, strict=True)])
    errors = []
    for step in range(12):
        sizes = [rng.choice([0, 0, 1, 3, 6]) if runner.room(row) else 0 for row in range(num_rows)]
        if step in (5, 6):
            sizes = [0] * num_rows  # rows without drafts share a cache
        right = [rng.choice([size, rng.randint(0, size)]) for size in sizes]
        trees = []
        for text, place, size, number in zip(texts, lengths, sizes, right, strict=True):
            nodes = text[0, place + 1 :][:size].clone()
            nodes[number:] = (nodes[number:] + 1) % VOCAB_SIZE
            trees.append(chain(nodes.tolist()))
        last = [int(text[0, place]) for text, place in zip(texts, lengths, strict=True)]
        if step == 4:
            runner.rehearse(last, [chain([3, 4, 5])] * num_rows)
        found = runner.verify_rows(last, trees)
        for row, (logits, number) in enumerate(zip(found, right, strict=True)):
            expected = plain[row][lengths[row] :][: 1 + number]
            difference = (logits[: 1 + number] - expected).abs().max() / plain[row].std()
            errors.append(float(difference))
        runner.commit_rows([range(number) for number in right])
        lengths = [place + 1 + number for place, number in zip(lengths, right, strict=True)]
        assert runner.lengths == lengths
    return max(errors)


@MODELS
@pytest.mark.parametrize("num_rows", [1, 3])
def test_chain_logits_equal_one_pass_over_the_text(family, num_rows):
    assert largest_error(tiny_model(family), num_rows) < 3e-4


@MODELS
@MODES
def test_texts_equal_the_baseline(family, mode):
    model = tiny_model(family)
    expected = plain_generate(model, num_tokens=48, **mode)
    for drafter in (oracle_drafter(expected, num_wrong=1), mixed_drafter(expected), FusedDrafter()):
        for max_nodes in (6, "auto"):
            output = tree_generate(model, drafter, max_nodes=max_nodes, num_tokens=48, **mode)
            assert output.sequences.tolist() == [expected]
            assert output.stats.verification == ("model" if family == "lfm2" else "chain")
    right = tree_generate(model, oracle_drafter(expected), max_nodes=6, num_tokens=48, **mode)
    assert right.stats.mean_acceptance_length > 5
    # Nothing is rejected, so nothing is fed again.
    assert right.stats.num_fed_tokens == right.stats.num_drafts + right.stats.num_draft_tokens


@MODELS
def test_only_recurrent_states_are_fed_again(family):
    model = tiny_model(family)
    text = plain_generate(model, num_tokens=48, **GREEDY)
    drafter = oracle_drafter(partly_wrong(text))
    stats = tree_generate(model, drafter, max_nodes=6, num_tokens=48, **GREEDY).stats
    again = stats.num_fed_tokens - stats.num_drafts - stats.num_draft_tokens
    assert (again > 0) is (family != "lfm2")


@torch.no_grad()
def test_convolutions_of_a_tree_see_ancestors(monkeypatch):
    model = build(*HYBRIDS["lfm2"])
    texts = [prompt(length, seed=length) for length in (1, 2, 19)]
    runner = Runner(model, prompt_length=19, max_length=40, max_nodes=6, num_rows=3)
    runner.prefill_rows([text[:, : max(text.shape[1] - 1, 1)] for text in texts], 7)
    parents, path = (-1, 0, 0, 1, -1, 3), [0, 1, 3, 5]
    tree = TokenTree([5, 6, 7, 8, 9, 10], parents)
    for _ in range(2):
        last = [int(text[0, -1]) for text in texts]
        if runner.lengths[0] == texts[0].shape[1]:  # a prompt of one token
            last[0] = 4
            texts[0] = torch.cat((texts[0], torch.tensor([[4]])), 1)
        found = runner.verify_rows(last, [tree] * 3)
        for row, text in enumerate(texts):
            for nodes in tree.paths():
                whole = torch.cat((text, tree_ids(tree, nodes)), 1)
                expected = model(whole, use_cache=False).logits[0, text.shape[1] - 1 :]
                ours = found[row][[0, *(1 + node for node in nodes)]]
                assert (ours - expected).abs().max() < 1e-4 * expected.std()
        runner.commit_rows([path] * 3)
        texts = [torch.cat((text, tree_ids(tree, path), torch.tensor([[4]])), 1) for text in texts]
    kernels = Runner._kernels

    def by_slots(self, inputs):
        places = torch.arange(inputs.parents.shape[1]).expand_as(inputs.parents)
        return kernels(self, inputs._replace(parents=(places - 1).clamp(min=0)))

    monkeypatch.setattr(Runner, "_kernels", by_slots)
    assert not check_model(model, verification="model").ok


def replace_in_the_convolution(layer):
    forward = layer.conv.forward
    layer.conv.forward = lambda *args, **named: 3 * forward(*args, **named)


def replace_in_the_layer(layer):
    layer.forward = partial(type(layer).forward, layer)  # as by accelerate's hooks


def replace_by_a_subclass(layer):
    class Scaled(type(layer.conv)):
        def forward(self, *args, **named):
            return 3 * super().forward(*args, **named)

    layer.conv.__class__ = Scaled


CHANGES = [replace_in_the_convolution, replace_in_the_layer, replace_by_a_subclass]


@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_changed_convolution_is_verified_by_chains(change, is_checked):
    model = build(*HYBRIDS["lfm2"])
    tree_generate(model, FusedDrafter(), **GREEDY)  # a first check, before the change
    change(model.model.layers[0])
    expected = plain_generate(model, **GREEDY)
    drafter = oracle_drafter(partly_wrong(expected))
    output = tree_generate(model, drafter, check_model=is_checked, max_nodes=6, **GREEDY)
    assert output.sequences.tolist() == [expected]
    assert output.stats.verification == "chain"
    reason = "convolution is not as" if change is replace_by_a_subclass else "as by offloading"
    assert reason in output.stats.reason
    with pytest.raises(UnsupportedModelError, match=reason):
        tree_generate(model, drafter, verification="model", **GREEDY)


def test_replaced_function_of_convolutions_is_verified_by_chains(monkeypatch):
    for name in ("causal_conv1d_fn", "causal_conv1d_update"):
        function = getattr(modeling_lfm2, name)
        scaled = lambda *args, of=function, **named: 3 * of(*args, **named)  # noqa: E731
        monkeypatch.setattr(modeling_lfm2, name, scaled)
    model = build(*HYBRIDS["lfm2"])
    expected = plain_generate(model, **GREEDY)
    drafter = oracle_drafter(partly_wrong(expected))
    output = tree_generate(model, drafter, max_nodes=6, **GREEDY)
    assert output.sequences.tolist() == [expected]
    assert output.stats.verification == "chain"


def test_hook_of_a_convolution_is_called_in_passes_over_trees():
    model = build(*HYBRIDS["lfm2"])
    convolution = model.model.layers[0].conv
    convolution.register_forward_hook(lambda _, __, output: 3 * output)
    expected = plain_generate(model, **GREEDY)
    output = tree_generate(model, oracle_drafter(expected), max_nodes=6, **GREEDY)
    assert output.sequences.tolist() == [expected]
    assert output.stats.verification == "model"


@MODELS
@MODES
def test_batch_rows_and_samples_equal_the_baseline(family, mode):
    model = tiny_model(family)
    ids = torch.ones((3, 30), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, length in enumerate((30, 11, 22)):
        ids[row, 30 - length :], mask[row, 30 - length :] = prompt(length, seed=row)[0], 1
    settings = {"max_new_tokens": 30, "pad_token_id": 1, **mode}
    for asked in ({"attention_mask": mask}, {"num_return_sequences": 2, "prefill_chunk_size": 7}):
        if mode is GREEDY and "num_return_sequences" in asked:
            continue
        inputs = ids if "attention_mask" in asked else ids[:1]
        torch.manual_seed(3)
        expected = model.generate(inputs, **asked, **settings)
        torch.manual_seed(3)
        output = generate(model, inputs, max_nodes=6, **asked, **settings)
        assert torch.equal(output.sequences, expected)


def test_padding_in_chunks_of_one_token_is_rejected():
    # There transformers masks no padding, so that its own text depends on the padding.
    model, ids = build(*HYBRIDS["qwen3_5"]), prompt(9)
    mask = (torch.arange(9)[None] >= 3).long()
    settings = {"prefill_chunk_size": 1, "pad_token_id": 1, "max_new_tokens": 9}
    with pytest.raises(UnsupportedRequestError, match="prefill_chunk_size=1 with padding"):
        generate(model, ids, attention_mask=mask, **settings)


@MODELS
def test_conversation_continues_from_its_cache(family):
    model = tiny_model(family)
    theirs, ours = (DynamicCache(config=model.config) for _ in range(2))
    text = prompt()
    for turn in range(3):
        settings = {"max_new_tokens": 9 + turn, "attention_mask": torch.ones_like(text), **GREEDY}
        plain = model.generate(text, **{CACHE_NAME: theirs}, **settings)
        drafter = mixed_drafter(plain[0].tolist())
        output = generate(model, text, drafter, max_nodes=6, cache=ours, **settings)
        assert output.sequences.tolist() == plain.tolist()
        text = torch.cat([plain, prompt(5, seed=turn)], dim=1)
    # `model.generate` continues from the returned cache.
    settings["attention_mask"] = torch.ones_like(text)
    plain, other = (model.generate(text, **{CACHE_NAME: c}, **settings) for c in (theirs, ours))
    assert plain.tolist() == other.tolist()


@MODES
def test_unrestored_state_changes_the_text(monkeypatch, mode):
    model = build(*HYBRIDS["qwen3_5"])
    expected = plain_generate(model, num_tokens=48, **mode)
    drafter = oracle_drafter(partly_wrong(expected))
    assert check_model(model, verification="chain").ok

    def forget(cache, before):
        for kept, now in zip(before.layers, cache.layers, strict=True):
            names = vars(now).keys() & {"conv_states", "recurrent_states"}
            vars(kept).update({name: vars(now)[name] for name in names})
        return restored(cache, before)

    monkeypatch.setattr("specds.transformers.verify.chain.restored", forget)
    assert not check_model(model, verification="chain").ok
    output = tree_generate(model, drafter, num_tokens=48, check_model=False, max_nodes=6, **mode)
    assert output.sequences.tolist() != [expected]


def test_options_that_need_one_width_are_refused():
    for options in ({"stream_interval": 9}, {"shape_invariant": True}):
        with pytest.raises(UnsupportedRequestError, match=r"recurrent states.*: leave them out"):
            generate(tiny_model("bamba"), prompt(), max_nodes=4, max_new_tokens=2, **options)


def test_model_that_drops_its_state_in_long_passes_is_refused():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": VOCAB_SIZE, "state_size": 8}
    torch.manual_seed(0)
    model = FalconMambaForCausalLM(FalconMambaConfig(**sizes, pad_token_id=None)).eval()
    with pytest.raises(UnsupportedModelError, match=r"0.4 to 1.4 of the logits' spread"):
        generate(model, prompt(), max_new_tokens=2)


def test_model_without_attention_is_served():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": VOCAB_SIZE, "state_size": 8}
    torch.manual_seed(0)
    config = Mamba2Config(**sizes, num_heads=8, head_dim=8, n_groups=1, pad_token_id=None)
    model = Mamba2ForCausalLM(config).eval()
    expected = plain_generate(model, **GREEDY)
    output = tree_generate(model, oracle_drafter(partly_wrong(expected)), max_nodes=6, **GREEDY)
    assert expected[: len(output.sequences[0])] == output.sequences[0].tolist()
    assert output.stats.num_accepted_tokens > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_model_with_other_time_steps_in_long_passes_is_refused(dtype):
    sizes = {"hidden_size": 32, "vocab_size": VOCAB_SIZE, "num_hidden_layers": 2, "head_dim": 8}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "mamba_num_heads": 8}
    sizes |= {"mamba_head_dim": 8, "ssm_state_size": 8, "layers_block_type": ["mamba", "attention"]}
    model = NemotronHForCausalLM(NemotronHConfig(**sizes)).to(dtype).eval()
    with pytest.raises(UnsupportedModelError, match=r"bounds time steps .* \(0\.001 of"):
        generate(model, prompt(), max_new_tokens=2)


def test_predicted_output_is_drafted():
    model = tiny_model("qwen3_5")
    expected = plain_generate(model, **GREEDY)
    drafter = FusedDrafter().for_request(predicted_output=expected[21:])
    output = generate(model, prompt(), drafter, max_nodes=6, max_new_tokens=32, **GREEDY)
    assert output.sequences.tolist() == [expected]
    assert output.stats.num_accepted_tokens > 16


def test_hybrid_is_the_target_of_a_hierarchy_and_no_level():
    hybrid, model = tiny_model("qwen3_5"), tiny_model("llama")
    expected = plain_generate(hybrid, **GREEDY)
    output = tree_generate(hybrid, HierarchyDrafter([model]), max_nodes=6, num_tokens=32, **GREEDY)
    assert output.sequences.tolist() == [expected]
    assert output.stats.num_draft_tokens > 0
    for levels in ([hybrid], {"small": model, "level 0": hybrid}):
        with pytest.raises(UnsupportedModelError, match=r"^level 0, .* use it as the target"):
            HierarchyDrafter(levels)
    convolutions = HierarchyDrafter([tiny_model("lfm2")])
    output = tree_generate(hybrid, convolutions, max_nodes=6, num_tokens=32, **GREEDY)
    assert output.sequences.tolist() == [expected]


def test_accelerated_generate_drafts_chains():
    model = build(*HYBRIDS["bamba"])
    expected = plain_generate(model, **GREEDY)
    with accelerate(model, oracle_drafter(expected), max_nodes=5):
        text = model.generate(prompt(), max_new_tokens=32, pad_token_id=1, **GREEDY)
    assert text.tolist() == [expected]
