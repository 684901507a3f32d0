"""Families whose models all have experts: how tokens choose them, and what weights are called.

Here belongs a family without dense models. One that has both is where its dense models are.
"""
