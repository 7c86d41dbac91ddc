"""What is drafting worth on real code? A small model, a corpus, prompts held out of both.

`specds.cli.demo` measures and shows it.
"""
