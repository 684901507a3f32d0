"""Kernels in Triton, each beside its reference in torch; the files are those of kernels/triton.

``language``, ``chain``, ``feed`` and ``hand_over`` serve a step as a whole.

Import a module of it only where torch and triton are wanted.
"""
