"""The demo: real code as the corpus, a small language model that ships along, held-out prompts."""
