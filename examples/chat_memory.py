"""Chat with a request cache: repeated questions are drafted from earlier answers."""

import tempfile
from pathlib import Path

import specds
from specds.models.load import load_model

model, tokenizer = load_model("demo")
# Chat models have a template; the demo's model only completes code.
tokenizer.chat_template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"

with tempfile.TemporaryDirectory() as folder:
    memory = Path(folder) / "mine.memory"
    for _ in range(2):  # two runs of a program
        drafter = specds.FusedDrafter.resume(memory, tokenizer=tokenizer)
        chat = specds.Chat(
            model, tokenizer, drafter, max_nodes=8, max_new_tokens=32, do_sample=False
        )
        print(chat.send("def read(path):"))
        print(chat.stats)
        chat.clear()  # the conversation enters the request cache
        drafter.save(memory)
