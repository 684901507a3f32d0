"""Anthropic's Messages: its endpoints, their bodies, and the way to the chat handler and back."""
