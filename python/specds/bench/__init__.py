"""How far do drafters get, and how fast is generation with them? What `specds bench` runs.

One folder an engine: `replay` needs recorded answers alone, `generation` runs a model. Both read
`transcripts`, name what drafts by `engines` and write a `page`. Imports all but the CLI.
"""
