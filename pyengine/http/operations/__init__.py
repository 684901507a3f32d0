"""Endpoints for operators: health, metrics, traces, the profiler."""
