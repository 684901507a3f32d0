"""What a decoder layer does beside attention and matrix products."""
