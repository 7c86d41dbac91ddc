"""Whatever is drafted, the text is the target's own: hypothesis drafts, also in bad faith."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models import VOCAB_SIZE, Drafter, prompt, tiny_model
from specds import generate
from specds.drafters import TokenTree
from specds.verify import RUNNERS

MODES = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 1.3, "top_k": 0},
    "penalised": {"do_sample": True, "top_p": 0.8, "repetition_penalty": 1.4},
}
NUM_TOKENS = 12

# What a node holds, relative to the token that the target will write there: itself, one beside it,
# or anything.
OFFSETS = st.one_of(st.just(0), st.just(1), st.integers(0, VOCAB_SIZE - 1))
NODES = st.tuples(st.integers(-1, 12), OFFSETS)
TREES = st.lists(NODES, max_size=12)


def tree_of(nodes, truth):
    """A valid tree of drawn nodes; a node's depth decides which true token it is relative to."""
    token_ids, parents, depths, edges = [], [], [], set()
    for wanted, offset in nodes:
        parent = min(wanted, len(token_ids) - 1)
        depth = 0 if parent < 0 else depths[parent] + 1
        token = (truth[min(depth, len(truth) - 1)] + offset) % VOCAB_SIZE
        if (parent, token) not in edges:
            edges.add((parent, token))
            token_ids.append(token)
            parents.append(parent)
            depths.append(depth)
    return TokenTree(token_ids, parents)


def text_is_the_targets(drafts, family, mode, seed, budget, verification):
    model, ids = tiny_model(family), prompt(seed=seed)
    arguments = {"max_new_tokens": NUM_TOKENS, **MODES[mode]}
    torch.manual_seed(seed)
    expected = model.generate(ids, **arguments)[0].tolist()
    left = iter(drafts)

    def grow(_rng, position, _max_nodes):
        return tree_of(next(left, []), expected[position:])

    torch.manual_seed(seed)
    arguments |= {"budget": budget, "verification": verification}
    output = generate(model, ids, Drafter(grow), **arguments)
    assert output.sequences[0].tolist() == expected


WHATEVER = given(
    drafts=st.lists(TREES, min_size=1, max_size=NUM_TOKENS),
    family=st.sampled_from(["llama", "mistral"]),
    mode=st.sampled_from(sorted(MODES)),
    seed=st.integers(0, 7),
    budget=st.integers(0, 12),
    verification=st.sampled_from(sorted(RUNNERS)),
)
PATIENT = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

test_no_drafter_changes_the_text = PATIENT(WHATEVER(text_is_the_targets))
