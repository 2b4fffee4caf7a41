"""Prepares the interpreter before any test module imports Triton."""

from interpreter import install

install()
