"""Before anything else in each process of a CPU engine: let Triton's interpreter stand in for its compiler.

vLLM's Model Runner V2 needs Triton, whose CPU wheel has no CPU backend. It asks `triton.backends` for exactly one
active driver; the interpreter (TRITON_INTERPRET=1) never calls it.
"""

import importlib.util
import os

if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None:
    import numpy as np
    from triton import backends as triton_backends
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    class _ActiveDriver:
        @staticmethod
        def is_active() -> bool:
            return True

    class _InterpreterBackend:
        driver = _ActiveDriver
        compiler = None

    triton_backends.backends.clear()
    triton_backends.backends["cpu"] = _InterpreterBackend

    def _boolean(mask: TensorHandle) -> TensorHandle:
        return mask if mask.data.dtype == np.bool_ else TensorHandle(mask.data.astype(np.bool_), mask.dtype)

    def _masked(name: str, position: int) -> None:
        inner = getattr(InterpreterBuilder, name)

        def wrapper(self, *args, **kwargs):
            if "mask" in kwargs:
                kwargs["mask"] = _boolean(kwargs["mask"])
            else:
                args = (*args[:position], _boolean(args[position]), *args[position + 1 :])
            return inner(self, *args, **kwargs)

        setattr(InterpreterBuilder, name, wrapper)

    # The interpreter's native load and store read masks as bytes of bool; vLLM's kernels also pass integers.
    _masked("create_masked_load", 1)
    _masked("create_masked_store", 2)
