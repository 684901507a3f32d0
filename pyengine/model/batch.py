"""A step's buffers; being written."""
