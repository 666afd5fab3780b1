"""Everything that check mode claims to notice: noticed where it is so, and not where it is not."""

import numpy as np
import pytest

from kernels.cuda.spec import Array, Kernel, Scalar
from kernels.emulator.device import KernelFault
from tests.unit.kernels.emulator.probes import ascending, device, kernel, names

SHARED_BYTES = {
    "writes_past_dynamic_shared_memory": 256,
    "reads_a_copy_before_it_has_come": 256,
    "waits_for_one_group_too_few": 256,
    "copies_from_between_vectors": 256,
    "a_row_of_ldmatrix_is_misaligned": 768,
}
NOTICED = {
    "reads_past_the_end": r"block \(0,0,0\) thread \(63,0,0\): illegal read of 4 bytes, 0 bytes past the end of buffer 'in'",
    "writes_before_the_beginning": r"thread \(0,0,0\): illegal write of 4 bytes, 4 bytes before buffer 'out'",
    "vector_runs_past_the_end": "read of 16 bytes at offset 248 runs past the end of 'in'",
    "vector_is_misaligned": "misaligned 8-byte read of 'in' at offset 4",
    "writes_an_input": "write to read-only buffer 'in'",
    "reads_an_output_before_it_is_written": "read of uninitialised 'out' at offset",
    "leaves_an_element_unwritten": "4 bytes of out were never written",
    "reads_shared_memory_that_nobody_wrote": "read of uninitialised 'shared memory'",
    "reads_past_static_shared_memory": "illegal read of 4 bytes, .* past the end of buffer 'shared memory'",
    "writes_past_static_shared_memory": "illegal write of 4 bytes, .* past the end of buffer 'shared memory'",
    "writes_past_dynamic_shared_memory": "illegal write of 4 bytes, 0 bytes past the end of buffer 'dynamic shared memory'",
    "no_barrier_between_warps": "race: .* of 'shared memory'",
    "no_barrier_within_a_warp": "race: .* of 'shared memory'",
    "a_shuffle_is_no_barrier": "race: .* of 'shared memory'",
    "a_warp_barrier_does_not_divide_warps": "race: .* of 'shared memory'",
    "overwrites_what_another_warp_reads": "race: .* of 'shared memory'",
    "counts_without_an_atomic": "race: .* of 'shared memory' .* after a write",
    "reads_a_counter_too_early": "race: .* of 'shared memory' .* after an? (atomic|read)",
    "two_blocks_write_one_element": "race: write of 'out' offset .* after a write by thread .* of another block",
    "reads_a_copy_before_it_has_come": "read of uninitialised 'dynamic shared memory'",
    "waits_for_one_group_too_few": "read of uninitialised 'dynamic shared memory'",
    "copies_from_between_vectors": "cp.async: misaligned 16-byte copy",
    "leaves_before_a_barrier": r"deadlock: 1 of 64 threads exited; thread 0 waiting at a barrier at checks.cu:\d+",
    "waits_at_another_barrier": r"deadlock: 0 of 64 .* thread 0 waiting at a barrier at .*; thread 32 waiting at a barrier at",
    "half_a_warp_waits_at_a_barrier": "deadlock: .* waiting at a barrier .* waiting in a warp collective",
    "lanes_shuffle_at_different_places": r"warp divergence: lane \d+ waits at checks.cu:\d+",
    "a_lane_has_left_the_warp": "names lane 7, which has exited",
    "is_not_in_its_own_mask": "calling lane is not in mask fffffffe",
    "reads_a_lane_outside_of_the_mask": "reads lane 20, which is not in the mask",
    "a_row_of_ldmatrix_is_misaligned": "ldmatrix: lane 9 address not 16-byte aligned",
    "traps": "__trap",
}
ANY_MODE = (
    "leaves_before_a_barrier",
    "waits_at_another_barrier",
    "half_a_warp_waits_at_a_barrier",
    "lanes_shuffle_at_different_places",
    "a_lane_has_left_the_warp",
    "is_not_in_its_own_mask",
    "reads_a_lane_outside_of_the_mask",
    "copies_from_between_vectors",
    "a_row_of_ldmatrix_is_misaligned",
    "traps",
)
"""What needs no look at accesses is noticed in fast mode as well."""
SCHEDULES = (0, 1, 2, 7)
CHECKED, FAST = device(check=True), device()


def run(on, name, *, wrong, seed):
    on.seed = seed
    out = np.zeros(64, np.float32)
    blocks = 2 if name == "two_blocks_write_one_element" else 1
    on.launch(kernel("checks", name, shared_bytes=SHARED_BYTES.get(name, 0)), (blocks,), (ascending(), out, wrong))


def test_every_kernel_of_the_file_is_run():
    assert sorted(NOTICED) == sorted(names("checks"))


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize("name", NOTICED)
def test_a_mistake_is_noticed_in_any_schedule(name, seed):
    with pytest.raises(KernelFault, match=NOTICED[name]):
        run(CHECKED, name, wrong=1, seed=seed)


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize("name", NOTICED)
def test_the_same_without_the_mistake_passes(name, seed):
    run(CHECKED, name, wrong=0, seed=seed)


@pytest.mark.parametrize("name", ANY_MODE)
def test_threads_that_do_not_meet_are_noticed_in_fast_mode(name):
    with pytest.raises(KernelFault, match=NOTICED[name]):
        run(FAST, name, wrong=1, seed=0)
    run(FAST, name, wrong=0, seed=0)


@pytest.mark.parametrize(
    ("grid", "block", "shared_bytes", "words"),
    [
        ((1,), 1025, 0, "block size must be 1..1024"),
        ((1, 65536), 64, 0, "bad grid"),
        ((1,), 64, 232449, "too much shared memory"),
    ],
)
def test_a_launch_that_no_gpu_takes_is_refused(grid, block, shared_bytes, words):
    one = kernel("checks", "traps", shared_bytes=shared_bytes, block=block)
    with pytest.raises(KernelFault, match=words):
        FAST.launch(one, grid, (ascending(), np.zeros(64, np.float32), 0))


@pytest.mark.parametrize("sent", ["int64", "float32"])
def test_a_scalar_of_another_width_or_kind_is_refused(sent):
    args = (Array("in", "float32"), Array("out", "float32", "out"), Scalar("wrong", sent))
    with pytest.raises(KernelFault, match=r"parameters of \[8, 8, 4\] bytes were sent \[8, 8, (8|-4)\]"):
        FAST.launch(Kernel("checks", "traps", args, (), 64), (1,), (ascending(), np.zeros(64, np.float32), 0))
