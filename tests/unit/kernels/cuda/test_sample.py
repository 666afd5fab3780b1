"""The CUDA sampler beyond its cases: noise, frequencies, rows alone, what a step sends, and that no case hangs on rounding."""

from dataclasses import replace

import numpy as np
import pytest

from kernels.cuda.sample import RECORD, RECORD_WORDS, Sampler
from kernels.cuda.source import flat_source
from kernels.cuda.spec import Array, Kernel
from kernels.emulator.device import EmulatedDevice
from kernels.proof.case import faults
from kernels.proof.sample import FILTERS, PENALTIES, cases
from kernels.proof.sample_rows import RowState, columns_of
from kernels.reference import sample as reference

NOISE = """
extern "C" __global__ void noise(const u64 *seeds, const int *positions, const u32 *ids, float *out) {
  out[threadIdx.x] = uniform(noise_key(seeds[threadIdx.x], positions[threadIdx.x]), ids[threadIdx.x]);
}
"""


def choose(logits, rows, *, max_words=10000, num_records=None):
    """(token_ids, failed) of rows over float32 logits, all ids valid."""
    num_records = num_records or len(rows)
    size = logits.shape[1]
    sampler = Sampler(vocab_size=size, num_valid=size, dtype="float32", max_rows=num_records, max_words=max_words)
    (num_words,), _ = sampler.inputs
    inputs = np.zeros(num_words, np.int32)
    words = sampler.pack(columns_of(rows), num_records=num_records)
    inputs[: len(words)] = words
    workspace = {name: np.zeros(shape, dtype) for name, (shape, dtype) in sampler.workspace.items()}
    token_ids, failed = np.zeros(num_records, np.int32), np.zeros(num_records, np.uint8)
    sampler.sample(EmulatedDevice(), logits, inputs=inputs, workspace=workspace, token_ids=token_ids, failed=failed)
    return token_ids, failed


def spread(*shape, scale=3.0):
    return (np.random.default_rng(shape[-1]).standard_normal(shape) * scale).astype(np.float32)


def test_noise_is_that_of_every_twin_bit_for_bit():
    draw = np.random.default_rng(1)
    seeds = draw.integers(0, 2**64, 512, dtype=np.uint64)
    positions = draw.integers(0, 2**31 - 1, 512, dtype=np.int32)
    ids = draw.integers(0, 2**18, 512, dtype=np.uint32)
    seeds[:2], positions[:3], ids[:4] = (0, 2**64 - 1), (0, 2**31 - 1, 1), (0, 1, 2**18 - 1, 7)
    base = Sampler(vocab_size=8, num_valid=8, dtype="float32", max_rows=1, max_words=0).kernel
    args = (Array("seeds", "uint64"), Array("positions", "int32"), Array("ids", "uint32"), Array("out", "float32", "out"))
    kernel = Kernel(source="sample", name="noise", args=args, defines=base.defines, block=512)
    out = np.zeros(512, np.float32)
    EmulatedDevice(source=lambda stem: flat_source(stem) + NOISE).launch(kernel, (1,), (seeds, positions, ids, out))
    want = [reference.uniform(int(s), int(p), int(i)) for s, p, i in zip(seeds, positions, ids, strict=True)]
    np.testing.assert_array_equal(out, np.array(want, np.float32))


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases()])
@pytest.mark.parametrize("factor", [1 - 2e-6, 1 + 2e-6])
def test_no_case_hangs_on_rounding(case, factor):
    """A GPU's exp and log differ from the processor's by less than such a change of every temperature and filter."""
    arrays = case.arrays()
    records = arrays["inputs"][: len(arrays["token_ids"]) * RECORD_WORDS].view(RECORD)
    for name in ("temperature", "top_p", "min_p"):
        records[name] *= np.float32(factor)
    case.launch(EmulatedDevice(), arrays)
    assert faults(case, arrays) == []


@pytest.mark.parametrize("values", [{}, {"temperature": 0.6}, {"top_k": 12, "top_p": 0.9, "min_p": 0.02}])
@pytest.mark.parametrize("planted", [False, True])
def test_frequencies_are_the_probabilities(values, planted):
    """Chi-square over 4,000 draws within 6 sigma; with logits half as large again, far outside."""
    logits, values = spread(40, scale=1.2), {"temperature": 1.0} | values
    rows = [RowState(values | {"seed": 7 + i // 100, "output_pos": i % 100}) for i in range(4000)]
    drawn, _ = choose(np.repeat(logits[None] * np.float32(1.5 if planted else 1), len(rows), 0), rows)
    filters = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | values
    ids = reference.kept(logits.astype(np.float64), **filters)
    weights = np.exp((logits[ids].astype(np.float64) - logits.max()) / filters["temperature"])
    counts = np.bincount(drawn, minlength=40)
    expected = weights / weights.sum() * len(rows)
    statistic = ((counts[ids] - expected) ** 2 / expected).sum() - (len(ids) - 1)
    within = counts[ids].sum() == len(rows) and statistic < 6 * np.sqrt(2 * (len(ids) - 1))
    assert within != planted


def test_a_row_alone_chooses_what_it_chooses_among_others():
    logits = spread(30, 777)
    logits[3, 5] = np.nan
    rows = [
        RowState(
            {"temperature": 0.9, "seed": i, "output_pos": i} | FILTERS[i % 10] | (PENALTIES if i % 3 else {}), output=range(60)
        )
        for i in range(30)
    ]
    token_ids, failed = choose(logits, rows, num_records=32)
    alone = [choose(logits[i : i + 1].copy(), rows[i : i + 1]) for i in range(30)]
    np.testing.assert_array_equal(token_ids[:30], [int(tokens[0]) for tokens, _ in alone])
    np.testing.assert_array_equal(failed[:30], [int(bad[0]) for _, bad in alone])
    assert failed.tolist() == [0, 0, 0, 1] + [0] * 28


def test_logits_are_only_read():
    logits = spread(2, 500)
    before = logits.copy()
    choose(logits, [RowState(PENALTIES, output=range(500), bias={3: 1.0}), RowState({"ban_end": True}, end_ids=(1, 2, 1))])
    np.testing.assert_array_equal(logits, before)


def test_ids_of_history_bias_and_ends_that_do_not_exist_are_passed_over():
    logits = spread(1, 300)
    strange = RowState(PENALTIES | {"ban_end": True}, prompt=(-1, 300, 2**31 - 1), output=(300,), bias={-7: 9.0}, end_ids=(300, -1))
    np.testing.assert_array_equal(choose(logits, [strange])[0], logits.argmax(1))


def test_a_bias_given_twice_is_added_twice():
    columns = columns_of([RowState(bias={5: 1.5, 9: 2.0})])
    columns.bias_ids[1] = 5
    words = Sampler(vocab_size=16, num_valid=16, dtype="float32", max_rows=1, max_words=9).pack(columns)
    assert words[RECORD_WORDS:].tolist() == [5, int(np.float32(3.5).view(np.int32))]


def test_rows_that_nothing_changes_send_no_words():
    rows = [RowState({"temperature": 1.0, "top_p": 0.9}, prompt=range(50), end_ids=(1, 2)) for _ in range(3)]
    sampler = Sampler(vocab_size=16, num_valid=16, dtype="float32", max_rows=4, max_words=0)
    assert sampler.pack(columns_of(rows), num_records=4).shape == (4 * RECORD_WORDS,)


def test_what_does_not_fit_is_refused_by_name():
    sampler = Sampler(vocab_size=16, num_valid=16, dtype="float32", max_rows=2, max_words=5)
    with pytest.raises(ValueError, match="max_rows is 2"):
        sampler.pack(columns_of([RowState()] * 3))
    with pytest.raises(ValueError, match="max_words is 5"):
        sampler.pack(columns_of([RowState(PENALTIES, output=range(6)), RowState()]))
    for num_valid, vocab_size in ((0, 16), (17, 16), (1, 2**19 + 1)):
        with pytest.raises(ValueError, match="ids are valid"):
            Sampler(vocab_size=vocab_size, num_valid=num_valid, dtype="float32", max_rows=1, max_words=0)


def test_the_largest_vocabulary_fits_in_the_shared_memory_of_a_block():
    kernel = Sampler(vocab_size=2**19, num_valid=2**19, dtype="bfloat16", max_rows=1, max_words=0).kernel
    assert kernel.shared_bytes + (16 << 10) < 99 << 10  # of sm_86 and sm_89, the least of those supported
    assert replace(kernel, shared_bytes=0).module == kernel.module
