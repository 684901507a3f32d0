"""The parts of `benches/bench_endurance.py`: servers, mixed load, disturbed streams, overload."""
