"""Drafts in programs that call `model.generate` themselves, such as pipelines."""

from transformers import pipeline

import specds
from specds.models.load import load_model

model, tokenizer = load_model("demo")
write = pipeline("text-generation", model=model, tokenizer=tokenizer)
settings = {"max_new_tokens": 32, "do_sample": False, "return_full_text": False}
prompt = "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n"
baseline = write(prompt, **settings)

# In this block, every call of this model uses specds.
with specds.accelerate(model, specds.FusedDrafter()):
    drafted = write(prompt, **settings)
print(drafted[0]["generated_text"])
assert drafted == baseline
