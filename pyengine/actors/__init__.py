"""The engine's actors: Scheduler and Detokenizer. Each says which thread runs it."""
