"""How each field of a request is treated: one policy, one table."""
