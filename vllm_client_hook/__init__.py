"""The vLLM plugin: predicts acceptance in the worker, sends observations, applies coefficients."""
