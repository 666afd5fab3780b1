"""SmolLM2 in float32: 128 rows of mixed lengths, layouts A, B and C, and some of the rows alone (C14, F1, F2).

Over a minute of one core and 3.6 GB; `test_dense_layouts.py` says the same of tiny models in seconds.
"""

import numpy as np
import pytest

from executor_svc.backends.cpu import CpuBackend
from executor_svc.config import ExecutorSettings
from executor_svc.plan import ALIGNED
from tests.support.batches import Driver, Seq
from tests.support.dense_batches import LAYOUTS, DenseDriver

pytestmark = pytest.mark.slow
NUM_ROWS = 128
NUM_TOKENS = 4
LENGTHS = [8 if row % 8 == 0 else 16 * (row % 8) + 1 + row % 8 % 3 for row in range(NUM_ROWS)]
"""8 to 114: whole blocks of one of two stories, computed once and hit by every row, and a tail of its own."""
LAYERS = 30


@pytest.fixture(scope="module")
def backend() -> CpuBackend:
    return CpuBackend(ExecutorSettings(precision="f32", num_blocks=2000, num_threads=1))


@pytest.fixture(scope="module")
def stories(backend) -> list[Seq]:
    rng, driver = np.random.default_rng(3), Driver(backend)
    told = [driver.add(rng.integers(5, 40000, 113).tolist()) for _ in range(2)]
    driver.run([(story, 113) for story in told])
    return told


def rows_of(driver: Driver, stories: list[Seq]) -> list[Seq]:
    """Sequences that begin with a story and go on differently; their blocks are apart from those of the stories."""
    taken = {block for story in stories for block in story.blocks}
    driver.free = [block for block in driver.free if block not in taken]
    rng, rows = np.random.default_rng(4), []
    for row, length in enumerate(LENGTHS):
        story, cached = stories[row % 2], (length - 1) // 16 * 16
        tail = rng.integers(5, 40000, length - cached).tolist()
        rows.append(driver.add([*story.tokens[:cached], *tail], shared=story, cached=cached))
    return rows


@pytest.fixture(scope="module")
def paged(backend, stories) -> tuple[list[list[int]], list[list[int]]]:
    """Tokens of each row, and the rows' digests at each decode step."""
    driver = Driver(backend)
    rows = rows_of(driver, stories)
    driver.run([(row, row.pending) for row in rows])
    digests = [driver.run([(row, 1) for row in rows], want_digests=True).digest.tolist() for _ in range(NUM_TOKENS - 1)]
    return [row.output for row in rows], digests


@pytest.mark.parametrize("name", LAYOUTS)
def test_c14_128_rows_of_mixed_lengths_have_the_same_bits_in_a_dense_cohort_as_in_blocks(backend, stories, paged, name):
    driver = DenseDriver(backend, layout=LAYOUTS[name])
    rows = rows_of(driver, stories)
    driver.prompts(rows)
    steps = [driver.decode(rows, want_digests=True) for _ in range(NUM_TOKENS - 1)]
    assert [row.output for row in rows] == paged[0]
    assert [step.digest.tolist() for step in steps] == paged[1]
    everything = 2 * LAYERS * NUM_ROWS
    again = 0 if LAYOUTS[name] == ALIGNED else everything
    assert [step.copies.cache_in for step in steps] == [everything, again, again]
    assert steps[0].lead_pad.tolist() == [max(LENGTHS) - length for length in LENGTHS]


def test_the_rows_alone_say_the_same(backend, stories, paged):
    """B=1, one row of each four lengths."""
    driver = Driver(backend)
    rows = rows_of(driver, stories)[1::34]
    for row in rows:
        driver.generate([row], num_tokens=NUM_TOKENS)
    assert [row.output for row in rows] == paged[0][1::34]
