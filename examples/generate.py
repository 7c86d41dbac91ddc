"""Generation with drafts: the text of `model.generate` in fewer forward passes."""

import torch

import specds
from specds.models.load import load_model

# A name on the hub or a folder; `demo` is the small code model of ./packages/demo.
model, tokenizer = load_model("demo")
prompt = tokenizer("def merge(left, right):\n", return_tensors="pt")

# Drafts come from the prompt, the text so far and the request cache.
drafter = specds.FusedDrafter(memory=specds.Memory(len(tokenizer)))
output = specds.generate(model, prompt["input_ids"], drafter, max_new_tokens=48, do_sample=False)
print(tokenizer.decode(output.sequences[0]))
print(output.stats)

baseline = model.generate(**prompt, max_new_tokens=48, do_sample=False)
assert torch.equal(output.sequences, baseline)
