"""Sessions under the bucketed and the ragged rule are recorded and repeated like any other: the policy is part of the settings."""

from pathlib import Path

import pytest

from drumline.trace.reader import open_recordings
from executor_svc.backends.fake import FakeOptions
from scheduler_svc.core.types import Limits
from scheduler_svc.replay.against import replay_against_scheduler
from scheduler_svc.replay.audit import audit
from scheduler_svc.replay.whatif import read_session, simulate
from tests.support.recorded_session import Session, mixed


def recorded(folder: Path, *, granted: bool, segment_bytes: int = 1 << 26, **changes: str) -> list:
    session = Session(
        folder,
        limits=Limits(max_num_batched_tokens=128, **changes),
        options=FakeOptions(num_blocks=64, max_num_seqs=8, max_num_batched_tokens=128, max_model_len=256, ragged_granted=granted),
        segment_bytes=segment_bytes,
    )
    mixed(session, num_requests=12)
    session.close()
    return list(open_recordings([folder]))


@pytest.mark.parametrize(("admission", "granted"), [("bucketed", True), ("ragged", True), ("ragged", False)])
def test_a_cohort_session_replays_byte_for_byte_and_has_no_finding(tmp_path: Path, admission: str, granted: bool) -> None:
    [recording] = recorded(tmp_path, granted=granted, admission=admission)
    assert recording.header.settings["limits"]["admission"] == admission
    outcome = replay_against_scheduler(recording, progress=lambda done: None)
    assert outcome.difference is None
    assert outcome.num_plans > 50
    assert audit(recording.header, recording) == []


def test_it_replays_from_the_middle_too(tmp_path: Path) -> None:
    for recording in recorded(tmp_path, granted=False, admission="ragged", segment_bytes=4096):
        assert replay_against_scheduler(recording, progress=lambda done: None).difference is None


def test_what_if_the_same_arrivals_had_been_bucketed(tmp_path: Path) -> None:
    [recording] = recorded(tmp_path, granted=True, admission="ragged")
    session = read_session(recording)
    ragged, bucketed = (simulate(session, changes={"admission": name}) for name in ("ragged", "bucketed"))
    assert bucketed.num_tokens == ragged.num_tokens
    assert bucketed.mean_rows < ragged.mean_rows
