"""Speed of drafters and baselines on a running model: `specds bench generate`."""
