"""Linear layers on torch devices, one form of weights a file."""
