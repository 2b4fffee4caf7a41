"""Both numerics in Triton; `vllm_client_hook.reference` gives the same numbers in torch."""

from vllm_client_hook.pack_kernel import pack
from vllm_client_hook.predict_kernels import predict

__all__ = ["pack", "predict"]
