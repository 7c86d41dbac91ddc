"""Custom drafter: an object with `session`, whose sessions draft and observe."""

import specds
from specds.models.load import load_model


class RepeatSession(specds.Session):
    """Draft the continuation of the last occurrence of the last token."""

    def __init__(self, prompt_ids):
        self.token_ids = [int(token) for token in prompt_ids]

    def draft(self, max_nodes, max_depth=None, min_prob=0.0):
        *before, last = self.token_ids
        if last not in before:
            return specds.TokenTree([], [])
        start = len(before) - before[::-1].index(last)
        chain = self.token_ids[start:][: min(max_nodes, max_depth or max_nodes)]
        return specds.TokenTree(chain, range(-1, len(chain) - 1))

    def observe(self, token_ids, num_verified=None):
        self.token_ids += [int(token) for token in token_ids]


class RepeatDrafter:
    vocab_size = None  # any vocabulary

    def session(self, prompt_ids):
        return RepeatSession(prompt_ids)


model, tokenizer = load_model("demo")
ids = tokenizer("x = [1, 2, 3]\ny = [1, 2, 3]\nz = [", return_tensors="pt")["input_ids"]
output = specds.generate(
    model, ids, RepeatDrafter(), max_nodes=4, max_new_tokens=24, do_sample=False
)
print(tokenizer.decode(output.sequences[0]))
print(output.stats)
