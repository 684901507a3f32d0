"""The start of a torch device: models loaded, memory divided, first steps computed.

Here belongs what runs before the first request, and never again.
"""
