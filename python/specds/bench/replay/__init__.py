"""How many tokens of recorded answers does a drafter predict? `specds bench replay`, no model."""
