"""llama-cpp-python with the demo's model, and how many steps it takes."""

from time import process_time

from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from engines.workload import DATASTORE, NUM_TOKENS, WHOLE, WORK, measure, model_path
from specds.integrations.llama_cpp import DraftModel

MAX_LENGTH = 1024


def draft_model(k=8, max_length=MAX_LENGTH, **options):
    options = {"datastore": DATASTORE, **WHOLE, **options}
    return DraftModel(options, k, max_length=max_length, tokenizer=model_path())


class Engine:
    """A `Llama`.

    `num_row_steps` counts the passes of its last texts, those of the prompts included.
    """

    def __init__(self, drafting=None, max_length=MAX_LENGTH):
        self.llama = Llama(
            str(WORK / "demo.gguf"),
            n_ctx=max_length,
            n_threads=1,
            n_threads_batch=1,
            verbose=False,
            draft_model=drafting,
        )
        evaluate = self.llama.eval

        def counted(tokens):
            self.num_row_steps += 1
            evaluate(tokens)

        self.llama.eval = counted

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.llama.close()

    def generate(self, prompts, max_tokens=NUM_TOKENS, seed=0, stop=(), **sampling):
        sampling = {"temp": 0.0, "top_k": 1, "repeat_penalty": 1.0, **sampling}
        self.num_row_steps, start, texts = 0, process_time(), []
        for ids in prompts:
            self.llama.set_seed(seed)
            text = []
            for token in self.llama.generate(ids, **sampling):
                text.append(token)
                if len(text) == max_tokens or token in stop:
                    break
            texts.append(text)
        self.cpu_seconds = process_time() - start
        return texts


if __name__ == "__main__":
    measure(
        {
            "plain": Engine,
            "prompt lookup, k = 8": lambda: Engine(LlamaPromptLookupDecoding(3, 8)),
            "specds, k = 8": lambda: Engine(draft_model(8)),
            "specds, k = 12": lambda: Engine(draft_model(12)),
        }
    )
