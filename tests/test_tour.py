"""Five tests to read first: one a subject, through the public API, with literal values."""

import specds
from specds.models.load import load_model


def test_lookup_in_a_datastore_counts_continuations(tmp_path):
    documents = [[1, 2, 3, 4], [9, 2, 3, 5], [2, 3, 4]]
    specds.build_from_token_ids(documents, tmp_path / "d.specds", vocab_size=16)
    datastore = specds.Datastore(tmp_path / "d.specds")
    token_ids, counts = datastore.continuations([2, 3])
    assert datastore.count([2, 3]) == 3
    assert (token_ids.tolist(), counts.tolist()) == ([4, 5], [2, 1])


def test_draft_of_a_repetition_continues_it():
    session = specds.FusedDrafter().session([5, 6, 7, 8, 5, 6])
    tree = session.draft(2)
    # Node 1 is the child of node 0, which follows the last token of the context (parent -1).
    assert (tree.token_ids.tolist(), tree.parents.tolist()) == ([7, 8], [-1, 0])
    session.observe([7, 8, 5])  # the tokens that the model generated
    assert session.draft(1).token_ids.tolist() == [6]


def test_generate_with_drafts_returns_the_tokens_of_the_model():
    model, tokenizer = load_model("demo")
    inputs = tokenizer("x = [1, 2, 3]\ny = [1, 2, 3]\nz = [", return_tensors="pt")
    expected = model.generate(**inputs, max_new_tokens=16, do_sample=False)
    output = specds.generate(model, **inputs, max_nodes=4, max_new_tokens=16, do_sample=False)
    assert output.sequences.tolist() == expected.tolist()
    assert output.stats.num_accepted_tokens > 0


def test_memory_keeps_tenants_apart():
    memory = specds.Memory(vocab_size=16)
    memory.insert("ann", [1, 2, 3, 4, 5, 6])
    drafter = specds.FusedDrafter(memory=memory)
    assert drafter.session([1, 2, 3], tenant="ann").draft(2).token_ids.tolist() == [4, 5]
    assert drafter.session([1, 2, 3], tenant="bob").draft(2).token_ids.tolist() == []
    memory.forget("ann")
    assert drafter.session([1, 2, 3], tenant="ann").draft(2).token_ids.tolist() == []


def test_engine_drafter_drafts_one_chain_per_request():
    engine = specds.EngineDrafter(vocab_size=16)
    engine.sync([[5, 6, 7, 5, 6], [1, 2, 3]], names=["a", "b"])
    token_ids, lengths, probs = engine.draft_chains(2)
    assert token_ids.tolist() == [[7, 5], [-1, -1]]
    assert lengths.tolist() == [2, 0]
    assert probs.shape == (2, 2)
