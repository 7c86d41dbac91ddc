"""Request caches as corpora: which requests are documents, and with which tokens."""

import pytest

from datastores import num_drafted, texts, until
from specds import Datastore
from specds._core import EngineDrafter
from specds.corpora import CorpusError, CorpusOptions, open_corpora, open_corpus
from specds.drafters import Memory
from specds.indexing import BuildOptions, build_datastore, build_from_token_ids
from specds.models.tokenization import fingerprint, vocab_size


@pytest.fixture
def tokenizer(demo_tokenizer):
    return demo_tokenizer


def remember(path, tokenizer, requests):
    memory = Memory(vocab_size(tokenizer), tokenizer=fingerprint(tokenizer))
    for tenant, given in requests.items():
        for text in given:
            memory.insert(tenant, text)
    memory.save(path)


REQUESTS = {"": [[5, 6, 7], [8, 9]], "ann": [[15, 16], [5, 6, 7]], "bob": [[25, 26, 27]]}


@pytest.mark.parametrize("place", ["", "{tenant}"])
def test_chosen_tenants_are_in_the_datastore(tmp_path, tokenizer, place):
    (tmp_path / "m").mkdir()
    remember(tmp_path / "m" / place, tokenizer, REQUESTS)
    url = str(tmp_path / "m" / place)
    for tenants, tokens in (((), [5, 6, 7, 8, 9]), (("ann",), [15, 16, 5, 6, 7])):
        options = CorpusOptions(tenants=tenants) if tenants else CorpusOptions()
        corpus = open_corpus(url, options)
        report = build_datastore(corpus, tokenizer, tmp_path / "d", BuildOptions(overwrite=True))
        datastore = Datastore(tmp_path / "d")
        assert (report.num_documents, datastore.num_tokens) == (2, len(tokens) + 2)
        assert [datastore.count([token]) for token in (*tokens, 25)] == [1] * len(tokens) + [0]
    both = open_corpus(url, CorpusOptions(tenants=("", "ann")))
    report = build_datastore(both, tokenizer, tmp_path / "b", BuildOptions(drop_duplicates=True))
    assert (report.num_documents, report.num_duplicates) == (3, 1)
    everything = Memory.open(url, vocab_size(tokenizer), tokenizer=fingerprint(tokenizer))
    assert texts(everything, "bob") == REQUESTS["bob"], "nothing is removed"


def test_requests_and_texts_are_one_corpus(tmp_path, tokenizer):
    remember(tmp_path / "m", tokenizer, REQUESTS)
    (tmp_path / "a.txt").write_text("def add(a, b):")
    (tmp_path / "b.txt").write_text("return a + b")
    names = [str(tmp_path / name) for name in ("a.txt", "m", "b.txt")]
    report = build_datastore(open_corpora(names), tokenizer, tmp_path / "d")
    ids = tokenizer.encode("return a + b", add_special_tokens=False)
    datastore = Datastore(tmp_path / "d")
    assert (report.num_documents, datastore.count(ids), datastore.count([8, 9])) == (4, 1, 1)
    part = open_corpus(names[1], CorpusOptions(sample=0.5))
    assert len(list(part)) == 2


def test_requests_of_another_tokenizer_are_an_error(tmp_path, tokenizer):
    memory = Memory(1000, tokenizer="another")
    memory.insert("", [1, 2])
    memory.save(tmp_path / "m")
    with pytest.raises(CorpusError, match="has tokens of another tokenizer"):
        build_datastore(open_corpus(str(tmp_path / "m")), tokenizer, tmp_path / "d")
    with pytest.raises(FileNotFoundError, match="no request cache"):
        open_corpus(f"{tmp_path}/none/{{tenant}}")


def test_running_engine_drafts_from_the_new_datastore_of_a_fleet(tmp_path, tokenizer):
    text, size = list(range(30, 60)), vocab_size(tokenizer)
    remember(tmp_path / "fleet", tokenizer, {"": [text]})
    build_from_token_ids([[5, 6]], tmp_path / "d", vocab_size=size)
    own = {"snapshot": tmp_path / "own", "memory_scope": "tenant", "sync_interval": 0.02}
    served = EngineDrafter(datastore=tmp_path / "d", vocab_size=size, **own)
    assert num_drafted(served, text[:10], "a") == 0
    corpus = open_corpus(str(tmp_path / "fleet"))
    build_datastore(corpus, tokenizer, tmp_path / "d", BuildOptions(overwrite=True))
    until(lambda: num_drafted(served, text[:10], "b") > 0)
