"""Outputs of the core become one columnar message per gateway: against a naive model, for any mix of gateways and columns."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc import wire
from scheduler_svc.core.types import FinishReason, Outputs
from scheduler_svc.routing import GatewaySession, Routes

NUM_SESSIONS = 3


@st.composite
def steps(draw) -> list[Outputs]:
    """A few steps over live sequences; each may repeat the keys of the one before, as steady decode does."""
    outputs: list[Outputs] = []
    keys = draw(st.lists(st.integers(0, 30), unique=True, max_size=12))
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.booleans()):
            keys = draw(st.lists(st.integers(0, 30), unique=True, max_size=12))
        counts = draw(st.lists(st.integers(0, 3), min_size=len(keys), max_size=len(keys)))
        if draw(st.booleans()):
            counts = [1] * len(keys)
        tokens = draw(st.lists(st.integers(0, 999), min_size=sum(counts), max_size=sum(counts)))
        entries = st.lists(st.integers(0, len(keys) - 1), unique=True, max_size=3) if keys else st.just([])
        ended, started = draw(entries), draw(entries)
        outputs.append(
            Outputs(
                keys=list(keys),
                num_tokens=() if all(count == 1 for count in counts) else counts,
                token_ids=tokens,
                finished=[(entry, FinishReason.ERROR) for entry in ended],
                errors=[(entry, "internal", f"key {keys[entry]}") for entry in ended],
                started=[(entry, entry) for entry in started],
            )
        )
    return outputs


class Model:
    """What every sequence must be told, sequence by sequence."""

    def __init__(self) -> None:
        self.live = set(range(31))
        self.tokens: dict[int, list[int]] = {}
        self.news: list[tuple] = []
        self.num_late = 0

    def take(self, outputs: Outputs) -> None:
        counts = list(outputs.num_tokens) or [1] * len(outputs.keys)
        ids = iter(outputs.token_ids)
        for entry, (key, count) in enumerate(zip(outputs.keys, counts, strict=True)):
            mine = [next(ids) for _ in range(count)]
            if key not in self.live:
                continue
            self.tokens.setdefault(key, []).extend(mine)
            self.news += [("started", key, num) for at, num in outputs.started if at == entry]
            self.news += [("ended", key, text) for at, _, text in outputs.errors if at == entry]
        self.live -= {outputs.keys[entry] for entry, _ in outputs.finished}


@given(steps())
def test_every_gateway_gets_exactly_its_own(outputs: list[Outputs]) -> None:
    routes, model = Routes(), Model()
    sessions = [GatewaySession(f"g{index}", max_backlog=1000) for index in range(NUM_SESSIONS)]
    for key in range(31):
        routes.add(sessions[key % NUM_SESSIONS], first_key=key, handles=[key + 1000])
    for step in outputs:
        before = [session.backlog for session in sessions]
        routes.deliver(step, _encode, source=1)
        model.take(step)
        assert all(session.backlog <= count + 1 for session, count in zip(sessions, before, strict=True)), "one message a step"
    tokens: dict[int, list[int]] = {}
    news: list[tuple] = []
    for index, session in enumerate(sessions):
        while session.backlog:
            _read(session._outbox.popleft().tokens, tokens, news, index)
    assert tokens == model.tokens
    assert sorted(news) == sorted(model.news)
    assert len(routes) == len(model.live)
    assert sum(len(session.keys) for session in sessions) == len(model.live)


def _encode(outputs, handles, entries):
    return wire.step_tokens(outputs, handles=handles, entries=entries)


def _read(message, tokens: dict[int, list[int]], news: list[tuple], index: int) -> None:
    keys = [handle - 1000 for handle in message.handles]
    assert all(key % NUM_SESSIONS == index for key in keys)
    counts = list(message.num_tokens) or [1] * len(keys)
    ids = iter(message.token_ids)
    for key, count in zip(keys, counts, strict=True):
        tokens.setdefault(key, []).extend([next(ids) for _ in range(count)])
    news += [("started", keys[entry], num) for entry, num in zip(message.started_entry, message.num_cached_tokens, strict=True)]
    news += [("ended", keys[error.entry], error.error.message) for error in message.errors]
    assert len(message.finished_entry) == len(message.errors)


def test_aborted_sequences_leave_nothing_behind() -> None:
    """B059: 20,000 sequences come and go; no list of cancelled ones grows."""
    routes = Routes()
    session = GatewaySession("g", max_backlog=10)
    for key in range(20_000):
        routes.add(session, first_key=key, handles=[key])
        assert routes.keys_of(session, [key]) == [key]
        routes.remove([key])
        routes.deliver(Outputs(keys=[key], token_ids=[1]), _encode, source=1)
    assert (len(routes), len(session.keys), session.backlog, len(routes._cache)) == (0, 0, 0, 1)
    assert routes.num_late == 20_000
