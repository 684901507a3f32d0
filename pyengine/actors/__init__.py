"""The actors: Request, Scheduler, KV-allocator and Detokenizer. Each file says which thread runs it."""
