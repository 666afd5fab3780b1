"""Small inputs must not hide the parallel forms of the kernels: here even the smallest work is shared among threads."""

import pytest

from kernels.cpu import after_attention, attention_rows, gated_mul, integer_linear, rms_norm, rope_kv_write

BOUNDS = [
    (attention_rows, "SERIAL_PRODUCTS"),
    (after_attention, "SERIAL_PRODUCTS"),
    (integer_linear, "SERIAL_PRODUCTS"),
    (rms_norm, "SERIAL_ELEMENTS"),
    (rope_kv_write, "SERIAL_ELEMENTS"),
    (gated_mul, "SERIAL_ELEMENTS"),
]


@pytest.fixture(autouse=True, scope="session")
def nothing_is_too_small():
    with pytest.MonkeyPatch.context() as patch:
        for module, name in BOUNDS:
            patch.setattr(module, name, 0)
        yield
