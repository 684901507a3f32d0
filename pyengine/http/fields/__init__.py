"""What becomes of each field of a request: one policy, one table."""
