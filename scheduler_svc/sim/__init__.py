"""Deterministic simulation: the real core, model executors that keep the seam's contract, and a virtual clock. No I/O."""
