"""Settings of the executor, and the lease that keeps two executors off one GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from drumline.errors import Unavailable
from drumline.settings import resolve
from executor_svc.backends.fake import FakeBackend, options_of
from executor_svc.config import ExecutorSettings, parse_bytes
from executor_svc.lease import GpuLease

GPU = "GPU-00000000-1111-2222-3333-444444444444"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1GiB", 2**30),
        ("1 gib", 2**30),
        ("512MB", 512 * 10**6),
        ("1.5GiB", 3 * 2**29),
        ("4096", 4096),
        ("8k", 8000),
        (7, 7),
        ("2Ti", 2**41),
    ],
)
def test_sizes_are_read_as_people_write_them(text: object, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 GiBs", "one", "1e9", True])
def test_other_sizes_are_refused(text: object) -> None:
    with pytest.raises(ValidationError, match="kv_memory"):
        ExecutorSettings(kv_memory=text)


def test_flags_environment_and_defaults() -> None:
    told = resolve(
        ExecutorSettings,
        section="executor",
        argv=["--kv-memory", "2GiB", "--backend", "fake"],
        environ={"DRUMLINE_EXECUTOR_MAX_NUM_SEQS": "9"},
    )
    assert (told.kv_memory, told.backend, told.max_num_seqs, told.block_size, told.drain_timeout_s) == (2**31, "fake", 9, 16, 30.0)


def test_the_ragged_declaration_can_be_refused_by_name() -> None:
    granted = FakeBackend(options_of(ExecutorSettings(backend="fake"))).info
    refused = FakeBackend(options_of(ExecutorSettings(backend="fake", ragged="refuse"))).info
    assert granted.ragged_granted
    assert not refused.ragged_granted
    assert "ragged" in refused.ragged_reason


def test_the_model_digest_names_what_changes_tokens_only() -> None:
    def digest(**told: object) -> str:
        return FakeBackend(options_of(ExecutorSettings(backend="fake", **told))).model.model_digest

    assert digest() == digest(fake_step_ms=5, max_num_seqs=3, served_model_name="x")
    assert digest() != digest(fake_eos_chance=0.5)


def test_the_second_lease_is_refused_and_names_the_holder(tmp_path: Path) -> None:
    with GpuLease(GPU, folder=str(tmp_path)):
        with pytest.raises(Unavailable, match=f"{GPU} is leased by process {os.getpid()}"):
            GpuLease(GPU, folder=str(tmp_path))
        GpuLease(GPU.replace("0", "9"), folder=str(tmp_path)).release()
    GpuLease(GPU, folder=str(tmp_path)).release()


def test_a_killed_holder_gives_the_lease_back(tmp_path: Path) -> None:
    script = (
        "import sys, time; from executor_svc.lease import GpuLease; it = GpuLease(sys.argv[1], folder=sys.argv[2]);"
        "print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", script, GPU, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(Unavailable, match=f"process {holder.pid}"):
        GpuLease(GPU, folder=str(tmp_path))
    holder.kill()
    holder.communicate()
    GpuLease(GPU, folder=str(tmp_path)).release()


def test_a_lease_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("keep me")
    (tmp_path / f"drumline-gpu-{GPU}.lease").symlink_to(target)
    with pytest.raises((OSError, Unavailable)):
        GpuLease(GPU, folder=str(tmp_path))
    assert target.read_text() == "keep me"


def test_a_uuid_cannot_leave_the_folder(tmp_path: Path) -> None:
    GpuLease("../../evil/uuid", folder=str(tmp_path)).release()
    assert [path.name for path in tmp_path.iterdir()] == ["drumline-gpu-______evil_uuid.lease"]
