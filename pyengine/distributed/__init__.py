"""Runs one model over several devices, a process for each."""
