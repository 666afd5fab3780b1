"""`drumline train-draft` from nothing to a head that drafts, small; and that it goes on where it was."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from executor_svc.backends.cpu import CpuBackend
from executor_svc.config import ExecutorSettings
from executor_svc.plan import Sampling
from executor_svc.training.__main__ import main
from executor_svc.training.config import TrainDraftSettings
from executor_svc.training.shards import read_shard, shards_in
from executor_svc.training.windows import windows_of
from tests.support.drafted import run

SMALL = {
    "tokens": 2500, "num_seqs": 8, "max_question": 8, "max_answer": 24, "system": "Be brief.",
    "vocabulary": 512, "depth": 2, "epochs": 2, "batch": 4, "window": 64, "held_out": 8,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("draft-head")
    flags = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert main(["--out", str(folder), "--stage", "generate", *flags]) == 0
    assert main(["--out", str(folder), "--stage", "train", *flags]) == 0
    return folder


def test_dialogues_are_whole_and_numbered_once(folder):
    shards = [read_shard(path) for path in shards_in(folder)]
    numbers = np.concatenate([shard.numbers for shard in shards])
    assert len(set(numbers.tolist())) == len(numbers) > 20
    for shard in shards:
        assert len(shard.token_ids) == shard.starts[-1] == len(shard.hidden)
        assert (np.diff(shard.starts) > shard.answers).all()
        assert np.isfinite(shard.hidden).all()


def test_windows_look_at_answers_only_and_states_belong_to_their_tokens(folder):
    settings = TrainDraftSettings(**SMALL)
    windows = windows_of(settings, folder=folder, held_out=False)
    window = windows.batch(0, size=4, seed=0)
    assert window.token_ids.shape == window.counted.shape == window.hidden.shape[:2]
    assert window.counted.any(dim=1).all()
    states = window.hidden[:, :-1]
    assert torch.equal(window.before[:, 1:], states)
    assert not len({*_numbers(windows)} & {*_numbers(windows_of(settings, folder=folder, held_out=True))})


def _numbers(windows) -> list[tuple[int, int]]:
    return [(file, begin) for file, begin, _, _ in windows._places]


def test_it_learns_and_says_how_well(folder):
    curve = json.loads((folder / "curve.json").read_text())
    first, last = (np.mean([point["loss1"] for point in piece]) for piece in (curve[:3], curve[-3:]))
    assert last < first
    card = (folder / "card.md").read_text()
    assert "never saw" in card
    assert (folder / "curve.png").stat().st_size > 1000


def test_it_goes_on_where_it_was(folder):
    before, num_shards = load_file(folder / "head.safetensors"), len(shards_in(folder))
    flags = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert main(["--out", str(folder), *flags]) == 0
    after = load_file(folder / "head.safetensors")
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert len(shards_in(folder)) == num_shards


def test_the_head_drafts_and_changes_nothing(folder):
    settings = ExecutorSettings(max_model_len=256, num_blocks=64, max_num_seqs=8, draft_head=str(folder / "head.safetensors"))
    backend = CpuBackend(settings)
    assert (backend.info.drafter, backend.info.mtp_depth) == ("mtp", 3)
    prompt, sampling = list(range(300, 330)), Sampling(max_tokens=24, ignore_eos=True)
    [plain] = run(backend, [prompt], [sampling])
    backend.reset()
    [drafted] = run(backend, [prompt], [sampling], drafter=backend.drafter, depth=3)
    backend.close()
    assert drafted.tokens == plain.tokens
    assert drafted.num_drafted > 20
