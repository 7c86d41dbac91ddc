"""The demo's model in real serving engines on a CPU, each in its own virtual environment.

`install.sh` makes an environment, `workload` has the requests, and `llama`, `vllm` and `sglang`
open an engine, for their tests and for `python -m engines`, which measures installed engines.
"""
