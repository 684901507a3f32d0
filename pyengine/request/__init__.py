"""A request's way to the engine and back: checked, tokenized, submitted, streamed."""
