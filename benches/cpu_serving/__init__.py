"""The parts of `benches/bench_cpu_serving.py`: models, floors, servers, load."""
