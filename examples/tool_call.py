"""A tool call by its JSON schema: only valid arguments, and fewer forward passes."""

import json

import llguidance

import specds
from specds.models.load import load_model

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"const": "get_weather_forecast"},
        "city": {"enum": ["Lisbon", "Boston", "Osaka"]},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["name", "city", "unit"],
    "additionalProperties": False,
}

# `smollm2` or any other model answers requests; `demo` only shows the form of the answer.
model, tokenizer = load_model("demo")
prompt = tokenizer("# the weather in Lisbon, in celsius\n", return_tensors="pt")

# `xgrammar.contrib.hf.LogitsProcessor` works as well, as `logits_processor=[...]`.
known = llguidance.LLTokenizer(
    tokenizer.backend_tokenizer.to_str(),
    n_vocab=model.config.vocab_size,
    eos_token=tokenizer.eos_token_id,
)
# Drafts gain little from a grammar with flexible whitespace.
form = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
source = llguidance.LLMatcher.grammar_from_json_schema(SCHEMA, overrides=form)
grammar = llguidance.LLMatcher(known, source)
settings = {"max_new_tokens": 64, "do_sample": False, "grammar": grammar}
output = specds.generate(model, prompt["input_ids"], max_nodes=8, **settings)
text = tokenizer.decode(output.sequences[0, prompt["input_ids"].shape[1] :], True)
print(json.loads(text), output.stats, sep="\n")
