"""Start of a Python process in which Triton's interpreter runs the kernels of vLLM's V2 runner."""

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    from types import SimpleNamespace

    from triton.backends import backends

    # vLLM asks for it before it runs kernels on a CPU; the interpreter needs none.
    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))
