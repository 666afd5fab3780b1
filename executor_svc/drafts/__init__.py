"""Who proposes tokens ahead of the target, and what becomes of them."""
