"""Chat and text completions: created, written in chunks, stored."""
