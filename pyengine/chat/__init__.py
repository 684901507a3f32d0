"""Chat: from messages to a prompt."""
