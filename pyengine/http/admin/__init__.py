"""What an administrator does to a running server, under ``/admin``."""
