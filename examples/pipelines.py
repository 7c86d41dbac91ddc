"""Programs that call `model.generate` themselves, such as pipelines, draft without a change."""

from transformers import pipeline

import specds
from specds.models.load import load_model

model, tokenizer = load_model("demo")
write = pipeline("text-generation", model=model, tokenizer=tokenizer)
settings = {"max_new_tokens": 32, "do_sample": False, "return_full_text": False}
prompt = "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n"
plain = write(prompt, **settings)

# Until the block ends, every call of this model goes through specds.
with specds.accelerate(model, specds.FusedDrafter()):
    drafted = write(prompt, **settings)
print(drafted[0]["generated_text"])
assert drafted == plain
