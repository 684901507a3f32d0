"""Checks of values from outside, and the error messages for invalid ones."""
