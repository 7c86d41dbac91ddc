"""Hierarchies of real models: unchanged text, rollback of caches, errors."""

import copy
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models import (
    GREEDY,
    VOCAB_SIZE,
    Drafter,
    Session,
    decodes_alike,
    mixed_drafter,
    plain_generate,
    prompt,
    random_drafter,
    random_tree,
    tiny_model,
    tree_generate,
)
from specds import FusedDrafter
from specds.drafters import TokenTree
from specds.drafters.session import EMPTY_TREE
from specds.transformers.hierarchy.config import ABLATIONS, HierarchyConfig
from specds.transformers.hierarchy.draft import suggestion
from specds.transformers.hierarchy.drafter import HierarchyDrafter
from specds.transformers.hierarchy.levels import CachedModel

FAMILIES = ["llama", "mistral", "gemma3", "gpt2"]


@cache
def like(family, noise, dtype=torch.float32):
    """The target of a family with noise in its weights: the more noise, the less they agree."""
    model = copy.deepcopy(tiny_model(family))
    with torch.random.fork_rng():
        torch.manual_seed(int(noise * 1000))
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * noise * weight.std().nan_to_num(0.0))
    return model.to(dtype).eval()


def levels(family="llama", dtype=torch.float32):
    return {"small": like(family, 0.2, dtype), "middle": like(family, 0.1, dtype)}


@settings(max_examples=25)
@given(
    family=st.sampled_from(FAMILIES),
    length=st.sampled_from([21, 120]),
    steps=st.lists(
        st.tuples(st.integers(0, 12), st.integers(1, 6), st.integers(0, 6), st.integers(0, 9)),
        min_size=1,
        max_size=5,
    ),
)
def test_cached_model_depends_only_on_its_tokens(family, length, steps):
    model, rng = tiny_model(family), np.random.default_rng(1)
    cached, tokens = CachedModel(model), prompt(length)[0].tolist()
    for taken_back, num_new, num_nodes, leaf in steps:
        tokens = tokens[: max(len(tokens) - taken_back, 3)]
        tokens = tokens + rng.integers(3, VOCAB_SIZE, num_new).tolist()
        tree = random_tree(rng, num_nodes) if num_nodes else EMPTY_TREE
        paths = [path.tolist() for path in tree.paths()] or [[]]
        logits = cached.run(tokens, tree)
        assert logits.shape == (1 + num_nodes, VOCAB_SIZE)
        for path in paths:
            whole = torch.tensor([tokens + tree.token_ids[path].tolist()])
            plain = model(input_ids=whole, use_cache=False).logits[0, len(tokens) - 1 :]
            of_path = logits[[0, *(1 + node for node in path)]]
            torch.testing.assert_close(of_path, plain, rtol=1e-3, atol=2e-3)
        cached.commit(path := paths[leaf % len(paths)])
        tokens = tokens + tree.token_ids[path].tolist()


CONFIGS = {
    **{name: HierarchyConfig.ablation(name) for name in ABLATIONS},
    "joined": HierarchyConfig(joined=True),
}


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_text_equals_the_baseline(family, name):
    for seed, penalty in enumerate([1.0, 1.3]):

        def make(expected, has_retrieval=seed or "join" in name):
            below = {"retrieval": mixed_drafter(expected)} if has_retrieval else {}
            return HierarchyDrafter({**below, **levels(family)}, CONFIGS[name])

        mode = {**GREEDY, "repetition_penalty": penalty}
        output = decodes_alike(tiny_model(family), make, 20, seed, mode=mode, max_nodes="auto")
        # Elsewhere what is verified depends on the clock.
        assert output.stats.num_accepted_tokens > 0 or name == "joined"


@pytest.mark.parametrize("verification", ["packed", "model"])
def test_sequences_of_a_batch_have_separate_levels(verification):
    settings = {"ids": torch.cat([prompt(seed=0), prompt(seed=1)]), "verification": verification}
    drafter = HierarchyDrafter(levels())
    output = decodes_alike(tiny_model("llama"), drafter, 20, max_nodes="auto", **settings)
    assert output.stats.levels["middle"].num_drafted == output.stats.num_draft_tokens


def test_level_equal_to_the_target_has_all_tokens_accepted():
    model = tiny_model("llama")
    drafter = HierarchyDrafter([model], HierarchyConfig.ablation("sd"))
    for mode in (GREEDY, {"do_sample": True, "top_k": 5, "repetition_penalty": 1.2}):
        stats = tree_generate(model, drafter, **mode).stats
        assert stats.redundancy == 0
        assert stats.target_utilization == pytest.approx(1 / 10, abs=0.03)


def test_self_verify_stops_at_uncertain_tokens():
    model = tiny_model("llama")
    configs = (HierarchyConfig.ablation(name) for name in ("sd", "self"))
    drafters = (HierarchyDrafter(levels(), config) for config in configs)
    plain, sure = (tree_generate(model, drafter, **GREEDY).stats for drafter in drafters)
    assert sure.redundancy < plain.redundancy
    assert sure.num_draft_tokens < plain.num_draft_tokens


def test_levels_are_counted_by_name_and_merged():
    model = tiny_model("llama")
    expected = plain_generate(model, **GREEDY)
    drafter = HierarchyDrafter({"retrieval": mixed_drafter(expected), **levels()})
    stats = tree_generate(model, drafter, max_nodes="auto", **GREEDY).stats
    assert list(stats.levels) == ["retrieval", "small", "middle"]
    middle = stats.levels["middle"]
    assert middle.num_drafted == stats.num_draft_tokens
    assert middle.num_accepted == stats.num_accepted_tokens
    assert min(middle.num_forwards, middle.seconds, stats.levels["retrieval"].num_accepted) > 0
    both = (stats + stats).levels["middle"]
    assert both.num_forwards == 2 * middle.num_forwards
    assert stats.to_dict()["levels"]["middle"]["num_drafted"] == middle.num_drafted


class TrialSession(Session):
    """Session that also drafts after speculative tokens, and records them."""

    def __init__(self, grow, prompt_ids):
        super().__init__(grow, prompt_ids)
        self.asked = []

    def draft_after(self, token_ids, max_nodes):
        self.asked.append(list(token_ids))
        return self.grow(self.rng, len(self.token_ids) + len(token_ids), max_nodes)


def test_retrieval_with_draft_after_serves_every_pass():
    model = tiny_model("llama")
    expected = plain_generate(model, **GREEDY)

    def grow(rng, position, num_nodes):
        """The next two tokens, right where the text is `expected`."""
        tokens = expected[position : position + min(num_nodes, 2)]
        return TokenTree(tokens, range(-1, len(tokens) - 1)) if tokens else EMPTY_TREE

    found, sessions, config = [], [], HierarchyConfig.ablation("sd")
    for kind in (Session, TrialSession):
        retrieval = Drafter(grow)
        retrieval.session = lambda ids, of=kind: sessions.append(of(grow, ids)) or sessions[-1]
        drafter = HierarchyDrafter({"retrieval": retrieval, "same": model}, config)
        output = tree_generate(model, drafter, max_nodes=32, **GREEDY)
        assert output.sequences.tolist() == [expected]
        found.append(output.stats.levels)
    alone, on_trial = (levels["same"] for levels in found)
    # A draft has ten tokens: three a pass, or without `draft_after` one a pass after the first.
    assert on_trial.num_forwards < 0.6 * alone.num_forwards
    assert on_trial.num_drafted == alone.num_drafted
    beneath = found[1]["retrieval"]
    assert 0 < beneath.num_accepted <= beneath.num_drafted
    _, session = sessions
    assert session.asked[:2] == [expected[22:25], expected[22:28]]


def test_retrieved_nodes_are_counted_when_returned():
    model = tiny_model("llama")
    expected = plain_generate(model, **GREEDY)
    config = HierarchyConfig(joined=True)
    drafter = HierarchyDrafter({"retrieval": mixed_drafter(expected)}, config)
    stats = tree_generate(model, drafter, max_nodes=32, **GREEDY).stats
    level = stats.levels["retrieval"]
    # At the end of the text, nodes that are too deep are returned and not verified.
    assert stats.num_draft_tokens <= level.num_drafted < stats.num_draft_tokens + 2 * 32
    assert stats.num_accepted_tokens <= level.num_accepted <= stats.num_accepted_tokens + 1
    assert level.num_accepted > 0


def test_draft_ends_at_eos():
    model = tiny_model("llama")
    expected = plain_generate(model, **GREEDY)
    eos = expected[30]
    settings = {"max_nodes": "auto", "eos_token_id": eos, "pad_token_id": eos}
    output = tree_generate(model, HierarchyDrafter([model]), **settings)
    assert output.sequences[0].tolist() == expected[: expected.index(eos, 21) + 1]


@pytest.mark.filterwarnings("ignore:a draft with token 97 is cut there")
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("known", [VOCAB_SIZE + 1, 60])
def test_retrieval_drafter_may_have_another_vocabulary_size(known, joined):
    model = tiny_model("llama")
    expected = plain_generate(model, **GREEDY)
    right = mixed_drafter(expected)

    def grow(rng, position, num_nodes):
        tree = right.grow(rng, position, num_nodes - 1)
        tree = tree.known(min(known, VOCAB_SIZE))
        return TokenTree([*tree.token_ids, known - 1], [*tree.parents, len(tree) - 1])

    class Strict(TrialSession):
        def observe(self, token_ids, num_verified=None):
            assert max(token_ids) < known
            super().observe(token_ids, num_verified)

        def draft_after(self, token_ids, max_nodes):
            assert max(token_ids) < known
            return super().draft_after(token_ids, max_nodes)

        def suggest(self, token_ids, *_):
            assert max(token_ids, default=0) < known
            return True

    retrieval = Drafter(grow, vocab_size=known)
    retrieval.session = lambda prompt_ids: Strict(grow, prompt_ids)
    drafter = HierarchyDrafter({"retrieval": retrieval, **levels()}, HierarchyConfig(joined=joined))
    assert drafter.vocab_size == min(known, VOCAB_SIZE)
    output = decodes_alike(model, drafter)
    assert output.stats.num_accepted_tokens > 0


def changed(**settings):
    """A level with other settings; in training mode if they have a dropout."""
    level = copy.deepcopy(like("llama", 0.1))
    vars(level.config).update(settings)
    return level.train("attention_dropout" in settings)


def drafts_with(*levels):
    tree_generate(tiny_model("llama"), HierarchyDrafter(levels))


def drafts_elsewhere():
    """Draft with a level that moves to another device once it was checked: checks read weights."""
    drafter = HierarchyDrafter([copy.deepcopy(FITS)])
    drafter._models["level 0"].to("meta")
    tree_generate(tiny_model("llama"), drafter)


FITS, RETRIEVAL = like("llama", 0.1), random_drafter()
WRONG = [
    ("all but the first must be models", lambda: HierarchyDrafter([])),
    ("all but the first must be models", lambda: HierarchyDrafter([FITS, RETRIEVAL])),
    ("all but the first must be models", lambda: HierarchyDrafter([RETRIEVAL, RETRIEVAL])),
    ("`level 0` has vocabulary 50, the target 97", lambda: drafts_with(changed(vocab_size=50))),
    ("dtype torch.float64, the target", lambda: drafts_with(like("llama", 0.1, torch.float64))),
    (r"device meta, the target cpu: move it by `.to\('cpu'\)`", drafts_elsewhere),
    ("training mode", lambda: HierarchyDrafter([changed(attention_dropout=0.1)])),
    ("prompt is empty", lambda: HierarchyDrafter([FITS]).session([])),
    ("ablation must be one of full, sd", lambda: HierarchyConfig.ablation("none")),
    ("window must be at least 1", lambda: HierarchyConfig(window=0)),
    ("max_nodes must be at least 1", lambda: HierarchyConfig(max_nodes=0)),
]


@pytest.mark.parametrize(("message", "make"), WRONG)
def test_invalid_hierarchy_is_rejected(message, make):
    with pytest.raises(ValueError, match=message):
        make()


def test_max_nodes_limits_the_draft():
    drafter = HierarchyDrafter([tiny_model("llama")], HierarchyConfig(window=9, max_nodes=4))
    assert len(drafter.session([1, 2, 3]).draft(64)) <= 4


@given(num_nodes=st.integers(0, 12), seed=st.integers(0, 99))
def test_suggestion_has_the_tree_and_top_tokens(num_nodes, seed):
    rng, vocab = np.random.default_rng(seed), 7
    tree = random_tree(rng, num_nodes, vocab)
    probs = torch.from_numpy(rng.dirichlet(np.ones(vocab), 1 + num_nodes).astype(np.float32))
    suggested = TokenTree(*suggestion(probs, tree)[:2])
    found = dict(
        zip(map(tuple, tokens_of_paths(suggested)), suggestion(probs, tree)[2], strict=True)
    )
    paths = [(), *map(tuple, tokens_of_paths(tree))]
    for path, of_next in zip(paths, probs.tolist(), strict=True):
        likely = sorted(range(vocab), key=of_next.__getitem__)[-4:]
        drafted = [other[-1] for other in paths[1:] if other[:-1] == path]
        for token in {*likely, *drafted}:
            assert found.pop((*path, token)) == of_next[token]
    assert not found


def tokens_of_paths(tree):
    paths = {-1: []}
    for node, (token, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
        paths[node] = [*paths[int(parent)], int(token)]
    return [*paths.values()][1:]


@pytest.mark.parametrize(("noise", "right"), [(0.0, 1.0), (3.0, 0.2)])
def test_ranking_model_finds_the_next_token_in_one_pass(noise, right):
    model, ranker = tiny_model("llama"), like("llama", noise)
    levels = {"fused": FusedDrafter(), "ranker": ranker}
    drafter = HierarchyDrafter(levels, HierarchyConfig(joined=True))
    stats = decodes_alike(model, drafter, max_nodes=1).stats
    assert stats.levels["ranker"].num_forwards == stats.num_draft_tokens
    share = stats.num_accepted_tokens / stats.num_draft_tokens
    assert share > 0.9 if right == 1.0 else share < right
