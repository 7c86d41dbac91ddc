"""Drafters against plain decoding on a running model: what `specds bench generate` measures."""
