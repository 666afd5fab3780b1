"""Blocks that decodes fill are named only when somebody looks for them. Nobody can tell: a core that names them at once, after
every result, finds the same prefixes."""

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from scheduler_svc.core.residency import publish_confirmed
from scheduler_svc.core.types import Plan
from scheduler_svc.sim.model_executor import SimSampling, full_output
from tests.support.core_world import House

SAMPLING = SimSampling(max_tokens=40, end_after=99)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 9)),
        st.tuples(st.just("continue"), st.integers(0, 20), st.integers(0, 40)),
        st.tuples(st.just("abort"), st.integers(0, 20)),
        st.tuples(st.just("run"), st.integers(1, 60)),
    ),
    min_size=4,
    max_size=14,
)


class Session:
    """One house, driven by steps. Prompts never repeat, so that no two sequences hold the same block."""

    def __init__(self, *, eager: bool) -> None:
        self.house = House(num_blocks=400, max_num_seqs=16)
        self.house.thorough = False
        self.eager = eager
        self.prompts: list[list[int]] = []
        self.cached: list[tuple[int, int]] = []

    def ask(self, prompt: list[int]) -> None:
        self.house.ask(prompt, max_tokens=SAMPLING.max_tokens, end_after=SAMPLING.end_after)
        self.prompts.append(prompt)

    def take(self, step: tuple) -> None:
        number = len(self.prompts)
        if step[0] == "ask":
            self.ask([2 + number % 40, 2 + number // 40, *range(2, 2 + step[1])])
        elif step[0] == "continue" and self.prompts:
            stem = self.prompts[step[1] % number]
            self.ask([*stem, *full_output(SAMPLING, stem)[: step[2]], 2 + number % 40, 45])
        elif step[0] == "abort" and self.prompts:
            self.house.abort([key for key in [step[1] % number] if key in self.house.core.sequences])
        elif step[0] == "run":
            for _ in range(step[1]):
                self.turn()

    def turn(self) -> None:
        house = self.house
        while house.send(0):
            plan: Plan = house.books.in_flight[-1].plan
            self.cached += [(new.key, new.num_cached_tokens) for new in plan.new_sequences]
        house.deliver(0)
        house.core.check_invariants()
        if self.eager:
            for seq in [*house.books.decoding, *house.books.retired.values()]:
                publish_confirmed(house.books, seq)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_naming_blocks_late_finds_what_naming_them_at_once_finds(steps):
    late, eager = Session(eager=False), Session(eager=True)
    for step in [*steps, ("run", 60)]:
        late.take(step)
        eager.take(step)
    assert late.cached == eager.cached
    event(f"hits: {any(num_cached >= 12 for _, num_cached in late.cached)}")
    late.house.finish()
