"""The recording format: segments of msgpack frames `(kind, t_ns, payload)` in checksummed zstd blocks.

`frames` says what a frame and a header are, `blocks` how bytes lie on disk, `writer` and `reader` do files. Knows no wire types
and no service: a PLAN frame carries the exact bytes of a StepPlan, and it is for the reader's owner to parse them.
"""
