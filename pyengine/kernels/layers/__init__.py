"""Kernels of a decoder layer, beside attention and matrix products."""
