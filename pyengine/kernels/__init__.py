"""Kernels in Triton, each beside its reference in torch; the files are those of kernels/triton.

Import a module of it only where torch and triton are wanted.
"""
