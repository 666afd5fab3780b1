"""Dense layouts beside the paged one: sequences with own caches, joined into a cohort for a step (A aligned, B stripped)."""
