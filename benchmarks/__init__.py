"""Benchmarks, each a module with a `main()`; `python -m benchmarks` runs them."""
