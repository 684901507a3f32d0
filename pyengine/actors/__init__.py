"""The actors: Request, Scheduler, KV-allocator, Detokenizer. Each says which thread runs it."""
