"""Which drafts equal the target's choices, and what each row emits for it."""

from kernels.layout import I32


def mtp_accept(chosen: I32, *, fed: I32, failed: I32, starts: I32, cohort: bool) -> tuple[list[int], list[list[int]]]:
    """(drafts accepted, tokens emitted) of each row: see kernels/cuda/mtp_accept.py."""
    accepted, emitted = [], []
    for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        choices, bad, drafts = chosen[start:stop].tolist(), failed[start:stop].tolist(), fed[start + 1 : stop].tolist()
        right = 0
        while right < len(drafts) and not bad[right] and drafts[right] == choices[right]:
            right += 1
        accepted.append(right)
        emitted.append(choices[:right] if any(bad[right : right + 1]) else choices[: right + 1])
    if cohort:
        fewest = min((len(tokens) for tokens in emitted if tokens), default=0)
        emitted = [tokens[:fewest] for tokens in emitted]
    return accepted, emitted
