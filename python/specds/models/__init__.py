"""Models and tokenizers: names resolved, files loaded, tokens rendered as text.

Read in this order: `resolve` (a name becomes a record), `load`, `tokenization`, `gguf`, `render`;
`cache_folder` holds files computed from a model. Imports `specds.hub` alone of the other folders.
"""
