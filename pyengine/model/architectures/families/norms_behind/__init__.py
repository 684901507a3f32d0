"""Families with norms behind attention and feed-forward layers, alone or besides those before them.

Here belongs a family some of whose models have such norms; its other models (Gemma 1, GLM-4 of
2024, K-EXAONE, OLMo 1) are in the same file.
"""
