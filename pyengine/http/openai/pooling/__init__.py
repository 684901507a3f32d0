"""Embeddings, and the relevance of documents to a query."""
