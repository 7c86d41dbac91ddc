"""What a datastore gives the fused drafter to start from."""

import json

import numpy as np
import pytest

from specds import BuildOptions, Datastore, FusedDrafter, build_datastore
from specds.drafters import fit_weights, refit

NOTHING = fit_weights(None, [])


def lines(seed, number):
    """Code of which much recurs."""
    random = np.random.default_rng(seed)
    names = ["alpha", "beta", "gamma", "delta"]
    shown = [f"    value = {random.choice(names)}({n % 7}, size={n % 5})\n" for n in range(number)]
    return "".join(shown)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, demo_tokenizer):
    """A folder with a datastore that has a prior, and recorded answers."""
    folder = tmp_path_factory.mktemp("prior")
    texts = [json.dumps({"text": lines(seed, 60)}) for seed in range(40)]
    (folder / "corpus.jsonl").write_text("\n".join(texts))
    build_datastore(
        str(folder / "corpus.jsonl"),
        demo_tokenizer,
        folder / "d.specds",
        tokenizer_name="demo",
    )
    answers = [{"prompt": "def f():\n", "completion": lines(100 + n, 6)} for n in range(12)]
    (folder / "answers.jsonl").write_text("\n".join(map(json.dumps, answers)))
    return folder


def test_a_fused_drafter_starts_from_the_prior_of_its_datastore(folder):
    datastore = Datastore.open(folder / "d.specds")
    assert datastore.prior not in (None, NOTHING)
    assert FusedDrafter(datastore).weights() == datastore.prior
    assert fit_weights(datastore, []) == datastore.prior
    for given in (NOTHING, fit_weights(None, [list(range(40)) * 2])):
        assert FusedDrafter(datastore, weights=given).weights() == given
        assert fit_weights(datastore, [], weights=given) == given


def test_a_build_fits_to_as_many_tokens_as_it_is_told(folder, tmp_path, demo_tokenizer, run):
    corpus = str(folder / "corpus.jsonl")
    without = BuildOptions(prior_tokens=0)
    build_datastore(corpus, demo_tokenizer, tmp_path / "none", without)
    assert Datastore.open(tmp_path / "none").prior is None
    fitted = refit(tmp_path / "none")
    assert fitted.prior == Datastore.open(folder / "d.specds").prior
    arguments = ("--corpus", folder / "corpus.jsonl", "--tokenizer", "demo", "--json")
    run("build", *arguments, "--out", tmp_path / "less", "--prior-tokens", "1100")
    manifest = json.loads((tmp_path / "less" / "manifest.json").read_text())
    assert manifest["prior"]["num_tokens"] == 1100


def test_a_prior_holds_nothing_of_which_tokens_the_texts_repeat():
    drafter = FusedDrafter()
    nothing = len(drafter.weights())
    session = drafter.session([1])
    for result in range(10, 30):
        session.draft(4)
        session.observe([2, result, 3, result, 4])
    learned = drafter.weights()
    assert len(learned) == nothing
    assert FusedDrafter(weights=learned).weights() == learned != fit_weights(None, [])
    documents = [[2, result, 3, result, 4] * 4 for result in range(10, 30)]
    assert len(fit_weights(None, documents)) == nothing


def test_fit_gives_a_datastore_the_prior_that_it_lacks(folder, tmp_path, demo_tokenizer, run):
    corpus = str(folder / "corpus.jsonl")
    build_datastore(corpus, demo_tokenizer, tmp_path / "d", BuildOptions(prior_tokens=0))
    assert json.loads(run("info", tmp_path / "d", "--json")[1])["has_prior"] is False
    code, out, _ = run("fit", "--datastore", tmp_path / "d", "--json")
    assert (code, json.loads(out)["has_prior"]) == (0, True)
    assert Datastore.open(tmp_path / "d").prior == Datastore.open(folder / "d.specds").prior
    assert run("verify", tmp_path / "d")[0] == 0


def test_a_replay_starts_from_the_weights_that_it_is_given(folder, tmp_path, run):
    (tmp_path / "nothing.weights").write_bytes(NOTHING)
    (tmp_path / "prior.weights").write_bytes(Datastore.open(folder / "d.specds").prior)

    def length(*weights):
        _, out, err = run(
            *("bench", "replay", "--transcripts", folder / "answers.jsonl"),
            *("--datastore", folder / "d.specds", "--drafter", "fused", "--budget", 4),
            *("--limit", 3, "--json", *weights),
        )
        report = json.loads(out) if out else err
        return report["rows"][0]["expected_accepted_tokens"], report["weights"]

    nothing = length("--weights", "none")
    assert nothing == (length("--weights", tmp_path / "nothing.weights")[0], "none")
    prior = length()
    assert prior == (length("--weights", tmp_path / "prior.weights")[0], None)
    assert prior[0] != nothing[0]
