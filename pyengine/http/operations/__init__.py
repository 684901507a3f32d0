"""What those who run a server look at: health, metrics, traces, the profiler."""
