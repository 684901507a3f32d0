"""The metrics of ``/metrics`` that are values of a report as they are, and their names.

A value that the report lacks, such as those of drafts without speculation, is 0.
"""

NS = 1e-9

UNITS = {"ns": NS, "us": 1e-6}
"""What values whose names end so are told in seconds by."""

# Name without prefix and unit suffix, value of the report, help.
GAUGES = (
    ("requests_running", "running", "Requests that run."),
    ("requests_waiting", "waiting", "Requests that wait."),
    ("requests_compiling", "compiling", "Requests that wait for their grammar."),
    ("steps_in_flight", "in_flight", "Steps planned and not yet committed."),
    ("kv_snapshots", "snapshots", "Snapshots of the states of layers, held or cached."),
    ("kv_snapshot_bytes", "snapshot_bytes", "Bytes that they take of the KV cache."),
    ("grammar_cache_entries", "grammar_cache_entries", "Grammars that are kept."),
    ("grammar_cache_bytes", "grammar_cache_bytes", "Bytes that they hold, about."),
    ("grammar_mask_bytes", "grammar_mask_bytes", "Bytes of masks that are kept."),
    ("grammar_queue", "grammar_queue", "Grammars that wait for a compiler thread."),
    ("grammar_slow_threads", "grammar_slow", "Threads that compile at lowest priority."),
    (
        "grammar_abandoned_threads",
        "grammar_abandoned",
        "Threads that still run a compilation that took too long.",
    ),
    (
        "speculation_active",
        "speculation_active",
        "1 while steps carry drafts, 0 without speculation or while it would not pay.",
    ),
)
COUNTERS = (
    ("prompt_tokens", "prompt_tokens", "Prompt tokens of admitted requests."),
    ("prompt_tokens_cached", "cached_tokens", "Prompt tokens that came from the prefix cache."),
    ("generation_tokens", "completion_tokens", "Tokens generated."),
    ("steps", "steps", "Steps planned."),
    ("preemptions", "preemptions", "Running requests sent back to the queue."),
    (
        "prefix_cache_queried_tokens",
        "prefix_queries",
        "Tokens looked up in the prefix cache, after a preemption too.",
    ),
    (
        "prefix_cache_hit_tokens",
        "prefix_hits",
        "Tokens found in the prefix cache, after a preemption too.",
    ),
    ("kv_snapshots_taken", "snapshots_taken", "Snapshots that were taken."),
    (
        "kv_snapshot_hits",
        "snapshot_hits",
        "Sequences that began from a snapshot, after a preemption too.",
    ),
    (
        "kv_check_failures",
        "kv_check_failures",
        "Checks of the KV allocator, made when the scheduler becomes idle, that failed.",
    ),
    (
        "grammar_certain_tokens",
        "certain_tokens",
        "Tokens that were not sampled, as a grammar allowed no other.",
    ),
    (
        "grammar_compilations",
        "grammar_compilations",
        "Compilations that ended with a grammar or a refusal.",
    ),
    (
        "grammar_refusals",
        "grammar_refusals",
        "Grammars that were refused: as unsupported, for time, or for a full queue.",
    ),
    ("grammar_cancelled", "grammar_cancelled", "Compilations that no request waited for any more."),
    ("grammar_timeouts", "grammar_timeouts", "Compilations that took too long."),
    (
        "request_device_seconds",
        "cost_device_ns",
        "The device's time that requests were charged which asked for their costs.",
    ),
    (
        "request_cache_byte_seconds",
        "cost_cache_byte_us",
        "Bytes of the cache that they held, by how long.",
    ),
)

# Name without prefix, histogram of the report or its telemetry, help; those of seconds are in ns.
HISTOGRAMS = (
    (
        "request_queue_time_seconds",
        "queue_time_ns",
        "From a request's arrival to its first admission.",
    ),
    (
        "time_to_first_token_seconds",
        "first_token",
        "From a request's arrival until its first token was written to its connection.",
    ),
    (
        "inter_token_latency_seconds",
        "next_token",
        "Between two writes of a request's tokens to its connection.",
    ),
    (
        "delivery_seconds",
        "deliver",
        "From the commit of tokens until a connection, or the caller's loop, had taken them.",
    ),
    (
        "loop_lag_seconds",
        "loop_lag",
        "How late timers of the frontends' loops come, while there are requests.",
    ),
    (
        "request_duration_seconds",
        "duration_ns",
        "From arrival to end, of requests that were answered (stop, length).",
    ),
    ("request_prompt_tokens", "prompt_length", "Prompt tokens of requests that were answered."),
    (
        "request_generation_tokens",
        "completion_length",
        "Tokens generated for requests that were answered.",
    ),
    ("grammar_compile_time_seconds", "grammar_compile_ns", "How long compiling a grammar took."),
)
# Name of the cache, help; its lookups are counted as hits and misses.
LOOKUPS = (
    ("grammar_cache", "Grammars asked for, by whether they had been compiled already."),
    ("grammar_mask", "Masks of grammars, by whether the state of the grammar had one already."),
)
