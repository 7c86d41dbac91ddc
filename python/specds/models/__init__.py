"""Models and tokenizers: names resolved, files loaded, tokens rendered as text.

Read in this order: `resolve` (a name becomes a record), `load`, `tokenization`, `gguf`, `render`;
`cache_folder` holds files computed from a model. Of the other folders, it imports only
`specds.hub`.
"""
