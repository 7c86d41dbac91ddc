"""The models of `specds demo`, a folder each: `specds.loading` names them."""
