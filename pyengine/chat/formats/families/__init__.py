"""One file for each family of chat formats."""
