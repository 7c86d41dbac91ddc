"""A text with drafts: the one that `model.generate` writes, in fewer passes."""

import torch

import specds
from specds.models.load import load_model

# A name on the hub or a folder; `demo` is the small model of code that `specds[demo]` brings.
model, tokenizer = load_model("demo")
prompt = tokenizer("def merge(left, right):\n", return_tensors="pt")

# Drafts come from the prompt, the text so far and, by the memory, from earlier requests.
drafter = specds.FusedDrafter(memory=specds.Memory(len(tokenizer)))
output = specds.generate(model, prompt["input_ids"], drafter, max_new_tokens=48, do_sample=False)
print(tokenizer.decode(output.sequences[0]))
print(output.stats)

plain = model.generate(**prompt, max_new_tokens=48, do_sample=False)
assert torch.equal(output.sequences, plain)
