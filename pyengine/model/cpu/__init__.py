"""The runner of the CPU: kernels in Rust."""
