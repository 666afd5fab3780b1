"""Random sessions without a bug: the audit finds nothing, the plans come out byte-identical, tokens agree with what clients got.

The audit keeps books of its own, so that this is also an oracle for the core that does not share its code.
"""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from drumline.trace.reader import Recording, Segment, open_recordings
from executor_svc.backends.fake import FakeOptions
from scheduler_svc.core.types import Limits
from scheduler_svc.replay.against import replay_against_scheduler
from scheduler_svc.replay.audit import Auditor
from tests.support.recorded_session import Session, mixed, prompt

limits = st.builds(
    Limits,
    max_num_seqs=st.integers(1, 8),
    max_num_batched_tokens=st.integers(8, 64),
    prefill_chunk=st.sampled_from([0, 5, 16]),
    enable_prefix_caching=st.booleans(),
    plans_in_flight=st.integers(1, 4),
    max_waiting_requests=st.sampled_from([4, 2048]),
    drafts=st.sampled_from(["adaptive", "fixed"]),
    advance=st.sampled_from(["per_sequence", "cohort"]),
)
options = st.builds(
    FakeOptions,
    num_blocks=st.integers(13, 40),
    max_num_seqs=st.integers(1, 8),
    max_num_batched_tokens=st.just(64),
    max_model_len=st.just(200),
    eos_chance=st.sampled_from([0.0, 0.05]),
    fail_token=st.sampled_from([-1, 17]),
    drafter=st.sampled_from(["none", "mtp"]),
    mtp_depth=st.integers(1, 4),
    ragged_granted=st.booleans(),
)


def check(session: Session, recording: Recording) -> None:
    auditor = Auditor(recording.header)
    for frame in recording:
        auditor.frame(frame)
    assert [str(finding) for finding in auditor.findings] == []
    for key, tokens in session.outputs.items():
        if (life := auditor.books.lives.get(key)) is not None:
            assert life.tokens[life.num_prompt :] == tokens
    outcome = replay_against_scheduler(recording, progress=lambda done: None)
    assert outcome.difference is None


ENDS_BEHIND_AN_ABORT = {
    "bounds": Limits(
        max_num_seqs=2, max_num_batched_tokens=42, plans_in_flight=3, max_waiting_requests=4, enable_prefix_caching=False
    ),
    "fake": FakeOptions(num_blocks=13, max_num_seqs=2, max_num_batched_tokens=64, max_model_len=200, eos_chance=0.05),
    "num_executors": 3,
    "seed": 1739,
}
"""A client goes away; its row, two plans ahead, still ends for length, and nobody has counted what it emitted since."""


@given(bounds=limits, fake=options, num_executors=st.integers(1, 3), seed=st.integers(0, 10_000))
@example(**ENDS_BEHIND_AN_ABORT)
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
def test_a_healthy_session_has_no_finding(bounds: Limits, fake: FakeOptions, num_executors: int, seed: int) -> None:
    with TemporaryDirectory() as folder:
        session = Session(Path(folder), limits=bounds, options=fake, num_executors=num_executors)
        mixed(session, num_requests=12, seed=seed)
        session.close()
        [recording] = open_recordings([Path(folder)])
        check(session, recording)


@given(st.integers(0, 10_000), st.integers(4, 20))
@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.too_slow])
def test_an_executor_that_is_lost_and_one_that_joins(seed: int, when: int) -> None:
    with TemporaryDirectory() as folder:
        session = Session(Path(folder), num_executors=2)
        for index in range(8):
            session.submit([prompt(seed + index, 30)], max_tokens=20)
        for turn in range(2 * when):
            session.step()
            if turn == when:
                session.lose(1)
        session.run()
        session.close()
        [recording] = open_recordings([Path(folder)])
        check(session, recording)


def each_segment(session: Session) -> Callable[[], bool]:
    """Makes the sink write after every turn, so that segments are as small as asked for."""
    step = session.step

    def slow() -> bool:
        sink = session.recorder._sink
        sink._wake.set()
        for _ in range(1000):
            if sink._taken_bytes == sink._put_bytes and not sink._pending:
                break
            sink._thread.join(0.001)
        return step()

    return slow


def answer_late(session: Session) -> None:
    answer, turns = session._answer, count()

    def late(executor_id: int) -> None:
        if not (executor_id == 1 and next(turns) % 3) and session.links[executor_id].queue:
            answer(executor_id)

    session._answer = late  # type: ignore[method-assign]


@pytest.mark.parametrize("advance", ["per_sequence", "cohort"])
@pytest.mark.parametrize("drafter", ["none", "mtp"])
@given(st.integers(0, 10_000), st.integers(13, 30))
@settings(deadline=None, max_examples=2, suppress_health_check=[HealthCheck.too_slow])
def test_every_segment_is_a_beginning(drafter: str, advance: str, seed: int, num_blocks: int) -> None:
    """Also one in which plans with drafts are in flight: the second executor answers every third time."""
    with TemporaryDirectory() as folder:
        fake = FakeOptions(
            num_blocks=num_blocks, max_num_seqs=6, max_num_batched_tokens=64, max_model_len=200, eos_chance=0.03, drafter=drafter
        )
        bounds = Limits(max_num_batched_tokens=64, drafts="fixed", advance=advance)
        session = Session(Path(folder), limits=bounds, options=fake, num_executors=2, segment_bytes=2000)
        answer_late(session)
        session.step = each_segment(session)  # type: ignore[method-assign]
        mixed(session, num_requests=8, seed=seed)
        session.close()
        files = sorted(Path(folder).glob("*.trace"))
        assert len(files) > 3
        for first in range(0, len(files), 3):
            check(session, Recording([Segment(path) for path in files[first:]]))
