"""Responses: created, followed as events, run in the background, stored."""
