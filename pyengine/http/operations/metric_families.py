"""The metrics of ``/metrics`` that are values of a report as they are, and their names.

A value that the report lacks, such as those of drafts without speculation, is 0.
"""

from typing import Literal

NS = 1e-9

UNITS = {"ns": NS, "us": 1e-6}
"""What values whose names end so are told in seconds by."""

# Name without prefix and unit suffix, kind, value of the report, help.
VALUES: tuple[tuple[str, Literal["gauge", "counter"], str, str], ...] = (
    ("requests_running", "gauge", "running", "Requests that run."),
    ("requests_waiting", "gauge", "waiting", "Requests that wait."),
    ("requests_compiling", "gauge", "compiling", "Requests that wait for their grammar."),
    ("steps_in_flight", "gauge", "in_flight", "Steps planned and not yet committed."),
    ("prompt_tokens", "counter", "prompt_tokens", "Prompt tokens of admitted requests."),
    (
        "prompt_tokens_cached",
        "counter",
        "cached_tokens",
        "Prompt tokens that came from the prefix cache.",
    ),
    ("generation_tokens", "counter", "completion_tokens", "Tokens generated."),
    ("steps", "counter", "steps", "Steps planned."),
    ("preemptions", "counter", "preemptions", "Running requests sent back to the queue."),
    (
        "prefix_cache_queried_tokens",
        "counter",
        "prefix_queries",
        "Tokens looked up in the prefix cache, after a preemption too.",
    ),
    (
        "prefix_cache_hit_tokens",
        "counter",
        "prefix_hits",
        "Tokens found in the prefix cache, after a preemption too.",
    ),
    (
        "kv_snapshots",
        "gauge",
        "snapshots",
        "Snapshots of the states of layers, held or cached.",
    ),
    ("kv_snapshot_bytes", "gauge", "snapshot_bytes", "Bytes that they take of the KV cache."),
    ("kv_snapshots_taken", "counter", "snapshots_taken", "Snapshots that were taken."),
    (
        "kv_snapshot_hits",
        "counter",
        "snapshot_hits",
        "Sequences that began from a snapshot, after a preemption too.",
    ),
    (
        "kv_check_failures",
        "counter",
        "kv_check_failures",
        "Checks of the KV allocator, made when the scheduler becomes idle, that failed.",
    ),
    ("grammar_cache_entries", "gauge", "grammar_cache_entries", "Grammars that are kept."),
    (
        "grammar_cache_bytes",
        "gauge",
        "grammar_cache_bytes",
        "Bytes that they hold, about.",
    ),
    (
        "grammar_certain_tokens",
        "counter",
        "certain_tokens",
        "Tokens that were not sampled, as a grammar allowed no other.",
    ),
    ("grammar_mask_bytes", "gauge", "grammar_mask_bytes", "Bytes of masks that are kept."),
    (
        "grammar_compilations",
        "counter",
        "grammar_compilations",
        "Compilations that ended with a grammar or a refusal.",
    ),
    (
        "grammar_refusals",
        "counter",
        "grammar_refusals",
        "Grammars that were refused: as unsupported, for time, or for a full queue.",
    ),
    (
        "grammar_cancelled",
        "counter",
        "grammar_cancelled",
        "Compilations that no request waited for any more.",
    ),
    ("grammar_timeouts", "counter", "grammar_timeouts", "Compilations that took too long."),
    ("grammar_queue", "gauge", "grammar_queue", "Grammars that wait for a compiler thread."),
    ("grammar_slow_threads", "gauge", "grammar_slow", "Threads that compile at lowest priority."),
    (
        "grammar_abandoned_threads",
        "gauge",
        "grammar_abandoned",
        "Threads that still run a compilation that took too long.",
    ),
    (
        "request_device_seconds",
        "counter",
        "cost_device_ns",
        "The device's time that requests were charged which asked for their costs.",
    ),
    (
        "request_cache_byte_seconds",
        "counter",
        "cost_cache_byte_us",
        "Bytes of the cache that they held, by how long.",
    ),
    (
        "speculation_active",
        "gauge",
        "speculation_active",
        "1 while steps carry drafts, 0 without speculation or while it would not pay.",
    ),
)

# Name without prefix, histogram of the report or its telemetry, unit of its values, help.
HISTOGRAMS: tuple[tuple[str, str, float, str], ...] = (
    (
        "request_queue_time_seconds",
        "queue_time_ns",
        NS,
        "From a request's arrival to its first admission.",
    ),
    (
        "time_to_first_token_seconds",
        "first_token",
        NS,
        "From a request's arrival until its first token was written to its connection.",
    ),
    (
        "inter_token_latency_seconds",
        "next_token",
        NS,
        "Between two writes of a request's tokens to its connection.",
    ),
    (
        "delivery_seconds",
        "deliver",
        NS,
        "From the commit of tokens until a connection, or the caller's loop, had taken them.",
    ),
    (
        "loop_lag_seconds",
        "loop_lag",
        NS,
        "How late timers of the frontends' loops come, while there are requests.",
    ),
    (
        "request_duration_seconds",
        "duration_ns",
        NS,
        "From arrival to end, of requests that were answered (stop, length).",
    ),
    (
        "request_prompt_tokens",
        "prompt_length",
        1,
        "Prompt tokens of requests that were answered.",
    ),
    (
        "request_generation_tokens",
        "completion_length",
        1,
        "Tokens generated for requests that were answered.",
    ),
    (
        "grammar_compile_time_seconds",
        "grammar_compile_ns",
        NS,
        "How long compiling a grammar took.",
    ),
)
# Name of the cache, help; its lookups are counted as hits and misses.
LOOKUPS = (
    ("grammar_cache", "Grammars asked for, by whether they had been compiled already."),
    ("grammar_mask", "Masks of grammars, by whether the state of the grammar had one already."),
)
