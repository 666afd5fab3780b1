"""What followed the latest, longest earlier place of a row's last tokens."""

from kernels.layout import I32


def ngram_draft(tokens: list[int], *, most: int, lengths: tuple[int, int]) -> list[int]:
    """The guess for one row whose known tokens are given; empty when fewer than lengths[0] tokens stood before."""
    known = len(tokens)
    for length in range(lengths[1], lengths[0] - 1, -1):
        tail = tokens[known - length :]
        for start in range(known - length - 1, -1, -1):
            if length <= known and tokens[start : start + length] == tail:
                text = list(tokens)
                for i in range(most):
                    text.append(text[start + length + i])
                return text[known:]
    return []


def ngram_drafts(tokens_NL: I32, *, slots: I32, num_known: I32, most: I32, lengths: tuple[int, int]) -> list[list[int]]:
    """The same for each row."""
    rows = zip(slots.tolist(), num_known.tolist(), most.tolist(), strict=True)
    return [ngram_draft(tokens_NL[slot, :known].tolist(), most=count, lengths=lengths) for slot, known, count in rows]
