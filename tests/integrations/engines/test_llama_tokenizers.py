"""Tokens of llama.cpp, for each rule that splits texts into words: run by `make test-llama`."""

import json
import unicodedata

import numpy as np
import pytest
import tokenizers

from gguf_models import write_tokens
from specds._core import GgufFile
from specds.models.gguf_splits import OF_GPT2, OF_SMOLLM, SPLITS
from specds.models.gguf_tokenizer import build_backend

llama_cpp = pytest.importorskip("llama_cpp", exc_type=ImportError)

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

TEXTS = [
    "Hello world! It's 12345 o'clock, we'LL see: they'Ve gone.\n\n  In   text\t\ttabs \r\n end",
    "def f(x_1, y2=3.14):\n    return {'a': [x_1 ** 2, y2 // 7]}  # note\n\n\n",
    "Größe, naïve café, Übermäßig, ŁÓDŹ, Привет мир, ДОБРЫЙ день",
    "中文字符123混合ABC, 日本語テキスト、カタカナ, 한국어 문장입니다.",
    "हिन्दी में लिखा, العربية ٣٤٥, עברית, ไทย, emoji 👩\u200d👩\u200d👧 🎉🎉",
    "camelCaseWords HTTPServer XMLHttpRequest snake_case KEBAB-case 1st 2nd a1b2c3 //path/to/file",
    "1 22 333 4444 55555 666666 7777777 ½ Ⅷ ²³ 1,234,567.89 -5e-10",
    "'quoted' ''double'' `tick` \"say\" (a)[b]{c} <tag attr='v'/> @user #tag $5.00 100% ^~ …—",
    "    \n \n\t\n   x\n\r\n\r\n y  \u00a0nbsp\u3000wide",
]
_RANDOM = np.random.default_rng(3)
_CASED = ["é", "ß", "Ω", "ॉ"]
_PARTS = [
    *"aB1中ह'\".,!? \t\n\r-_/",
    "  ",
    "'s",
    "'LL",
    "\n\n",
    "ß",
    "Ω",
    "が",
    "٣",
    "🎉",
    "x",
    "Y",
]
TEXTS += ["".join(_RANDOM.choice(_PARTS, 60)) for _ in range(150)]
TEXTS += ["".join(_RANDOM.choice([*_PARTS, *_CASED], 60)) for _ in range(150)]


def _is_caseless(text):
    kinds = {unicodedata.category(letter) for letter in text if not letter.isascii()}
    return not kinds & {"Lu", "Ll", "Lt", "Lm", "Mn", "Mc"}


@pytest.fixture(scope="module")
def vocabulary():
    """Tokens over any borders of words, so that a split changes what they are."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=2000, initial_alphabet=sorted(alphabet), show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    model = json.loads(backend.to_str())["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    return sorted(model["vocab"], key=model["vocab"].get), merges


@pytest.mark.parametrize("pre", sorted({*SPLITS, *OF_GPT2, *OF_SMOLLM}))
def test_tokens_are_those_of_llama_cpp(tmp_path, vocabulary, pre):
    tokens, merges = vocabulary
    fields = {
        "tokenizer.ggml.token_type": [1] * len(tokens), "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.bos_token_id": 0,
    }  # fmt: skip
    path = write_tokens(tmp_path / "it.gguf", tokens, **fields)
    try:
        engine = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    except ValueError:
        pytest.skip("this llama.cpp does not know the rule")
    backend = build_backend(GgufFile(path), path)
    differing = []
    # llama.cpp counts letters beyond ASCII as upper and lower ones, and marks as none.
    is_by_case = r"\p{Lu}" in SPLITS.get(pre, ("",))[0]
    for text in filter(_is_caseless, TEXTS) if is_by_case else TEXTS:
        found = backend.encode(text, add_special_tokens=False).tokens
        expected = engine.tokenize(text.encode(), add_bos=False, special=False)
        if found != [tokens[number] for number in expected]:
            differing.append(text)
    assert differing == []
