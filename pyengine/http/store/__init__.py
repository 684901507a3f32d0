"""The store of responses, conversations, files and batches."""
