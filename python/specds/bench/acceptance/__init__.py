"""Acceptance of drafts on recorded answers, without a model: `specds bench acceptance`."""
