"""The runner of torch devices: CUDA GPUs, and the CPU in tests and with several ranks."""
