"""Sampling, one file per device; the rules are written once per device in its kernels."""
