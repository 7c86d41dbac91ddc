"""The demo's model in real serving engines on a CPU: each in an environment of its own.

`install.sh` makes an environment; `workload` is what every engine is given; `llama`, `vllm` and
`sglang` open one, for their tests and for `python -m engines`, which measures all that are there.
"""
