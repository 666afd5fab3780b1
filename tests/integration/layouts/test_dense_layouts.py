"""Layouts A and B against C on real models: the same bits, at the price that each one has (C14, C15, E18, F1, F2, F3)."""

import numpy as np
import pytest

from executor_svc.backends.cpu import CpuBackend
from executor_svc.config import ExecutorSettings
from executor_svc.layouts.refusal import CacheRefused
from executor_svc.plan import ALIGNED, CACHE_IN, CACHE_NOTHING, CACHE_RESET, STRIPPED
from tests.support import tiny_models
from tests.support.batches import Driver
from tests.support.dense_batches import LAYOUTS, DenseDriver

LENGTHS = [5, 40, 17, 16, 40, 1, 33, 90]
FAMILIES = ["llama", "mistral", "qwen2-sliding", "qwen3"]


@pytest.fixture(scope="module")
def backends(tmp_path_factory):
    made = {}

    def get(name: str = "llama", *, kv: str = "float32") -> CpuBackend:
        if (name, kv) not in made:
            folder = tiny_models.save(tiny_models.make(tiny_models.configs()[name]), tmp_path_factory.mktemp("dense") / name)
            told = {"precision": "f32", "kv_cache_dtype": kv, "num_blocks": 160, "num_threads": 1}
            made[name, kv] = CpuBackend(ExecutorSettings(model=str(folder), **told))
        return made[name, kv]

    return get


def prompt_of(length: int, *, seed: int = 0) -> list[int]:
    return np.random.default_rng([seed, length]).integers(2, tiny_models.VOCAB_SIZE, length).tolist()


def paged(backend, prompts, *, num_tokens: int):
    """Tokens and digests of each decode step, all rows in one ragged paged batch."""
    driver = Driver(backend)
    sequences = [driver.add(prompt) for prompt in prompts]
    driver.run([(sequence, len(sequence.tokens)) for sequence in sequences])
    digests = [driver.run([(s, 1) for s in sequences], want_digests=True).digest.tolist() for _ in range(num_tokens - 1)]
    return [s.output for s in sequences], digests


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kv", ["float32", "float16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_c14_plain_decode_at_mixed_lengths_has_the_paged_bits(backends, family, kv, layout):
    """Prompts and decodes; full attention and sliding windows (24 and 20 tokens, lengths on both sides)."""
    backend, prompts = backends(family, kv=kv), [prompt_of(length, seed=i) for i, length in enumerate(LENGTHS)]
    want, want_digests = paged(backend, prompts, num_tokens=6)
    driver = DenseDriver(backend, layout=LAYOUTS[layout])
    sequences = [driver.add(prompt) for prompt in prompts]
    driver.prompts(sequences)
    digests = [driver.decode(sequences, want_digests=True).digest.tolist() for _ in range(5)]
    assert [s.output for s in sequences] == want
    assert digests == want_digests
    assert driver.steps[-1].row_errors == {}


def test_f1_aligned_copies_at_a_change_only_and_f2_stripped_in_every_step(backends):
    """2 x layers x rows a step in B; in A that at the change, then 0."""
    backend, prompts = backends(), [prompt_of(length) for length in (5, 40, 17)]
    seen = {}
    for name, layout in LAYOUTS.items():
        driver = DenseDriver(backend, layout=layout)
        sequences = [driver.add(prompt) for prompt in prompts]
        driver.prompts(sequences)
        steps = [driver.decode(sequences) for _ in range(4)]
        seen[name] = [step.copies.cache_in for step in steps]
        assert [step.copies.needless_in for step in steps] == [0] * 4
        assert [step.copies.strip for step in steps] == [0] * 4
        assert steps[0].lead_pad.tolist() == [35, 0, 23]
        assert [len(step.lead_pad) for step in steps] == ([3, 0, 0, 0] if layout == ALIGNED else [3] * 4)
    assert seen == {"aligned": [18, 0, 0, 0], "stripped": [18] * 4}


def test_f3_assembling_an_unchanged_aligned_cohort_is_counted(backends):
    driver = DenseDriver(backends(), layout=ALIGNED)
    sequences = [driver.add(prompt_of(length)) for length in (5, 9)]
    driver.prompts(sequences)
    ops = (CACHE_IN, CACHE_IN, CACHE_NOTHING, CACHE_IN)
    steps = [driver.step([(s, 1) for s in sequences], op=op) for op in ops]
    assert [step.copies.needless_in for step in steps] == [0, 1, 0, 1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_membership_may_change_at_any_step(backends, layout):
    """Rows leave, come back after others ran, and join late; a row that waits keeps its own cache."""
    backend, prompts = backends(), [prompt_of(length, seed=7) for length in (30, 3, 64, 12)]
    want, _ = paged(backend, prompts, num_tokens=5)
    driver = DenseDriver(backend, layout=LAYOUTS[layout])
    a, b, c, d = (driver.add(prompt) for prompt in prompts)
    driver.prompts([a, b])
    driver.decode([a, b])
    driver.prompts([c])
    for group in ([a, c], [c], [b], [b, c, a]):
        driver.decode(group)
    driver.prompts([d])
    while unfinished := [s for s in (a, b, c, d) if len(s.output) < 5]:
        driver.decode(unfinished)
    assert [s.output for s in (a, b, c, d)] == want


def test_a_cohort_grows_beyond_its_first_columns(backends):
    backend, prompts = backends(), [prompt_of(length) for length in (100, 20)]
    want, _ = paged(backend, prompts, num_tokens=165)
    driver = DenseDriver(backend, layout=ALIGNED)
    sequences = [driver.add(prompt) for prompt in prompts]
    driver.prompts(sequences)
    copies = [driver.decode(sequences).copies.cache_in for _ in range(164)]
    assert [s.output for s in sequences] == want
    assert sorted(copies)[-4:] == [0, 12, 12, 12]  # the first In, and two growths


@pytest.mark.parametrize("layout", LAYOUTS)
def test_c15_what_a_ragged_row_leaves_for_others_is_its_live_tokens_only(backends, layout):
    """Blocks that dense rows filled, prompt and output, are hit by a dense row and by a paged one; neither can tell."""
    backend = backends()
    driver = DenseDriver(backend, layout=LAYOUTS[layout])
    long, short = driver.add(prompt_of(70)), driver.add(prompt_of(20))
    driver.prompts([long, short])
    for _ in range(30):
        driver.decode([long, short])
    story = short.tokens[:49]
    hit = driver.add(story, shared=short, cached=48)
    driver.prompts([hit])
    driver.decode([hit])
    reader = Driver(backend)
    reader.free = driver.free
    other = reader.add(story, shared=short, cached=48)
    reader.generate([other], num_tokens=2)
    fresh = Driver(backend, seed=3)
    fresh.free = driver.free
    alone = fresh.add(story)
    fresh.generate([alone], num_tokens=2)
    assert hit.output == other.output == alone.output
    assert not np.array_equal(backend._cache.keys[0][short.blocks[0]], np.zeros_like(backend._cache.keys[0][0]))


def test_refusals_change_no_cache(backends):
    """Each one by name; afterwards the same rows go on as if nothing had been asked."""
    backend = backends()
    driver = DenseDriver(backend, layout=ALIGNED)
    a, b, c = (driver.add(prompt_of(length)) for length in (30, 3, 3))
    driver.prompts([a, b, c])
    driver.decode([a, b])
    wrong = [
        ([a, b], CACHE_RESET, "already holds 31 tokens"),
        ([b, a], CACHE_NOTHING, "not those of the cohort in their order"),
        ([a, c], CACHE_NOTHING, "not those of the cohort in their order"),
        ([a], CACHE_NOTHING, "has not ended and misses this step"),
        ([a, b], 7, "cache_op 7 is not known"),
    ]
    for rows, op, words in wrong:
        driver._op = op
        batch = driver.batch([(s, 1) for s in rows])
        with pytest.raises(CacheRefused, match=words):
            backend._dense.begin(batch)
    with pytest.raises(CacheRefused, match="feed 1 to 3"):
        backend._dense.begin(super(DenseDriver, driver).batch([(a, 1), (driver.add(prompt_of(3)), 3)]))
    assert [backend._dense.length(driver.slot(s)) for s in (a, b, c)] == [31, 4, 3]
    driver.decode([a, b])
    driver.decode([a, b, c])
    want, _ = paged(backend, [prompt_of(30), prompt_of(3), prompt_of(3)], num_tokens=4)
    assert [a.output, b.output, c.output] == [want[0], want[1], want[2][:2]]


def test_without_a_grant_rows_of_different_lengths_are_refused_by_layer_and_row(backends):
    driver = DenseDriver(backends(), layout=STRIPPED, granted=False)
    a, b, c = (driver.add(prompt_of(length)) for length in (30, 30, 9))
    driver.prompts([a, b, c])
    driver.decode([a, b])
    assert driver.steps[-1].lead_pad.tolist() == [0, 0]
    with pytest.raises(CacheRefused, match="layer 0: row 1 has 9 tokens where 31 were expected"):
        driver.decode([a, c])


def test_a_bucketed_stripped_cohort_needs_no_new_in(backends):
    """Rows of one length have no dead prefix, so the strip takes nothing apart."""
    driver = DenseDriver(backends(), layout=STRIPPED, granted=False)
    a, b = driver.add(prompt_of(30)), driver.add(prompt_of(30, seed=2))
    driver.prompts([a, b])
    driver.step([(a, 1), (b, 1)], op=CACHE_IN)
    step = driver.step([(a, 1), (b, 1)], op=CACHE_NOTHING)
    assert step.copies.cache_in == 0
    want, _ = paged(backends(), [prompt_of(30), prompt_of(30, seed=2)], num_tokens=3)
    assert [a.output, b.output] == want


def test_c6_leads_live_and_die_with_their_cohort(backends):
    """RESET clears them; the next cohort of equal rows has none, and another backend never saw them."""
    backend = backends()
    driver = DenseDriver(backend, layout=ALIGNED)
    a, b, c = (driver.add(prompt_of(length)) for length in (30, 3, 30))
    driver.prompts([a, b])
    assert driver.decode([a, b]).lead_pad.tolist() == [0, 27]
    driver.prompts([c])
    assert driver.steps[-1].lead_pad.tolist() == []
    assert backend._dense.cohort.lead.tolist() == [0]
    assert driver.decode([c]).lead_pad.tolist() == [0]
    backend.reset()
    assert backend._dense.cohort is None


def test_a_cohort_larger_than_the_cache_is_refused_with_both_sizes(backends):
    driver = DenseDriver(backends(), layout=ALIGNED)
    long, *short = (driver.add(prompt_of(length)) for length in (400, *[2] * 12))
    driver.prompts([long, *short])
    with pytest.raises(CacheRefused, match=r"a cohort of 13 rows and \d+ columns takes \d+ bytes, the cache has \d+"):
        driver.decode([long, *short])


def test_a_cohort_that_fits_only_without_columns_to_spare_grows_by_less_at_a_time(backends):
    """160 blocks: 8 rows of 250 to 290 columns fit, and do not with 64 more for each."""
    backend, prompts = backends(), [prompt_of(length, seed=4) for length in (250, *[3] * 7)]
    want, _ = paged(backend, prompts, num_tokens=40)
    driver = DenseDriver(backend, layout=ALIGNED)
    sequences = [driver.add(prompt) for prompt in prompts]
    driver.prompts(sequences)
    copies = [driver.decode(sequences).copies.cache_in for _ in range(39)]
    assert [s.output for s in sequences] == want
    assert sum(count > 0 for count in copies) == 4, "the In, and three growths by 16"
