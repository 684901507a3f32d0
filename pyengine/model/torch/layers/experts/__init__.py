"""Mixtures of experts on torch devices: rows sent to experts, and the products of each."""
