"""The models of `specds demo`, a folder each: `specds.models.load` names them."""
