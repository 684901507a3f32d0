"""A step on a torch device: what it is made of, and the order in which its work is queued.

Here belongs what knows a whole step; what only its last rows need is in :mod:`..outputs`.
"""
