"""The parts of models on torch devices, one kind a file."""
