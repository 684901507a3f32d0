"""A torch device as steps and layers see it: its queue, clock, graphs, memory and operations.

Here belongs what knows neither models nor requests. Of a step it knows the buffers alone.
"""
