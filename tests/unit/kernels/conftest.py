"""Small inputs must not hide the parallel forms of the kernels: here even the smallest work is shared among threads."""

import pytest

from kernels.cpu import dense_attention, gelu_mul, group_linear, paged_attention, rms_norm, rope_kv_write, silu_mul

BOUNDS = [
    (paged_attention, "SERIAL_PRODUCTS"),
    (dense_attention, "SERIAL_PRODUCTS"),
    (group_linear, "SERIAL_PRODUCTS"),
    (group_linear, "SERIAL_CODES"),
    (rms_norm, "SERIAL_ELEMENTS"),
    (rope_kv_write, "SERIAL_ELEMENTS"),
    (silu_mul, "SERIAL_ELEMENTS"),
    (gelu_mul, "SERIAL_ELEMENTS"),
]


@pytest.fixture(autouse=True, scope="session")
def nothing_is_too_small():
    with pytest.MonkeyPatch.context() as patch:
        for module, name in BOUNDS:
            patch.setattr(module, name, 0)
        yield
