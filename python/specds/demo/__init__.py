"""What is drafting worth on real code? A small model, a corpus, prompts held out of both.

Imports what builds, drafts and generates; what it measures is shown by `specds.cli.demo`.
"""
