"""Models of transformers: all that needs torch.

`acceleration` and `custom_generate` are for users, `target` for `specds.generate`. In the order of
the data: `arguments` rejects what drafts cannot serve, `custom_loop` is called by `model.generate`,
and `request` decodes what that has prepared, by `verify` and `accept`. `rehearsal` warms a model
up, `native_model` is a GGUF file as a model of transformers, `model_tables` computes the bigrams of
a model, `hierarchy` has models that draft for each other, and `serial_engine` serves a model.

Only commands, benchmarks and the exports of `specds`, `specds.verify` and `specds.papers` import
this folder, and one function each for models, drafters and requests.
"""
