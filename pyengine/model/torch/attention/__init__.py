"""Paged attention, one file per device."""
