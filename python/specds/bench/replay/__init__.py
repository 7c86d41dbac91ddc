"""How many tokens of recorded answers does a drafter foretell? `specds bench replay`, no model."""
