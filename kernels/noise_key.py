"""Constants of a token's noise, a hash of (seed, output position, token id); shared by every twin, and by drafters."""

GOLDEN = 0x9E3779B97F4A7C15
MIX_64 = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shift and factor of the two rounds of the 64-bit mix (splitmix64's finaliser), closed by a shift of 31."""
MIX_32 = ((16, 0x7FEB352D), (15, 0x846CA68B))
"""The same for 32 bits, closed by a shift of 16; applied to (id ^ low key), then to that + high key."""
