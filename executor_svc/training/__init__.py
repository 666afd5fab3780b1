"""Distilling a draft head for a model: its own text, its own hidden states, one small layer. Nothing here is imported by a
server."""
