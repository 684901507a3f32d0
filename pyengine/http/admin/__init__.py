"""Endpoints under ``/admin``, by which an administrator controls a running server."""
