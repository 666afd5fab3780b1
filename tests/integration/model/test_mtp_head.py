"""A draft head's drafts against the module that trains it, which was written apart from it in torch; and what a head may never
change.

Rows D1 and D8 of domain.md.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from executor_svc.backends.cpu import CpuBackend
from executor_svc.config import ExecutorSettings
from executor_svc.drafts.head_file import FORMAT
from executor_svc.model.errors import ModelError
from executor_svc.model.load import open_model
from executor_svc.model.rope import rope_tables
from executor_svc.plan import Sampling
from executor_svc.training.module import DraftModule
from executor_svc.training.train import initial
from tests.support import tiny_models
from tests.support.drafted import run
from tests.support.parity import FIXTURE

CASES = json.loads(FIXTURE.read_text())
PROMPTS = [case["prompt_ids"][: 10 + 4 * index] for index, case in enumerate(CASES)][:6]
DEPTH = 3
IDS = torch.arange(0, 49152, 3, dtype=torch.int32)
"""A third of the vocabulary, so that some tokens cannot be drafted."""


@pytest.fixture(scope="module")
def opened():
    return open_model(None)


@pytest.fixture(scope="module")
def module(opened) -> DraftModule:
    """The head before its training: the target's last layer. Rounded as its file is."""
    torch.manual_seed(3)
    module = initial(opened)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.half().float())
    return module


@pytest.fixture(scope="module")
def head(opened, module, tmp_path_factory):
    path = tmp_path_factory.mktemp("head") / "head.safetensors"
    tensors = {name: tensor.detach().half().contiguous() for name, tensor in module.tensors().items()}
    save_file({**tensors, "token_ids": IDS}, path, metadata={"format": FORMAT, "model_digest": opened.digest})
    return path


def open_backend(head, precision: str) -> CpuBackend:
    settings = ExecutorSettings(
        precision=precision, max_model_len=256, num_blocks=96, max_num_seqs=8, drafter="mtp", draft_head=str(head)
    )
    return CpuBackend(settings)


class Spy:
    """A drafter that writes down what another one saw and said."""

    name = "spy"

    def __init__(self, drafter) -> None:
        self.drafter = drafter
        self.hidden: dict[int, dict[int, np.ndarray]] = {}
        self.said: list[tuple[list[int], list[int]]] = []

    def observe(self, batch, hidden):
        owners = np.repeat(batch.slots, np.diff(batch.query_start))
        for place, (slot, position) in enumerate(zip(owners.tolist(), batch.positions.tolist(), strict=True)):
            self.hidden.setdefault(slot, {})[position] = hidden[place].copy()
        self.drafter.observe(batch, hidden)

    def forget(self):
        self.drafter.forget()

    def propose(self, slots, rows, *, most):
        drafts = self.drafter.propose(slots, rows, most=most)
        for row, ids, count in zip(rows.tolist(), drafts.token_ids.tolist(), drafts.counts.tolist(), strict=True):
            self.said.append((row, slots.tokens[row, : slots.num_known[row]].tolist(), ids[:count]))
        return drafts


@torch.no_grad()
def drafts_by_torch(module, opened, tokens: list[int], hidden: dict[int, np.ndarray], count: int, frozen) -> list[int]:
    """The same chain over the whole text, application by application, with nothing cached."""
    embedding, rows = frozen
    states = [np.zeros(opened.config.hidden_size, np.float32), *(hidden[position] for position in range(len(tokens) - 1))]
    known, drafts = list(tokens), []
    cos, sin = (torch.from_numpy(t) for t in rope_tables(opened.config.rope, head_dim=opened.config.head_dim, num_positions=256))
    before = torch.from_numpy(np.stack(states))[None]
    for step in range(count):
        num = len(tokens) + step
        # positions behind the known tokens have no state of the target: application j stands in for it there
        padded = torch.nn.functional.pad(before, (0, 0, 0, step))
        embedded = embedding[torch.tensor(known)][None]
        applied = module(padded, embedded, cos=cos[:num], sin=sin[:num], depth=step + 1)
        drafts.append(int(IDS[(applied[-1][0, -1] @ rows.T).argmax()]))
        known.append(drafts[-1])
    return drafts


def test_d8_drafts_are_those_of_the_module_that_trains_them(opened, module, head):
    """Ragged rows, chains of three, places computed again after verification, all in float32."""
    backend = open_backend(head, "f32")
    spy = Spy(backend.drafter)
    backend._drafter = spy
    sampling = [Sampling(max_tokens=12, ignore_eos=True)] * len(PROMPTS)
    run(backend, PROMPTS, sampling, drafter=spy, depth=DEPTH)
    backend.close()
    embedding = torch.from_numpy(opened.source.load("model.embed_tokens.weight"))
    frozen = (embedding, embedding[IDS.long()])
    same = total = 0
    for slot, tokens, said in spy.said:
        expected = drafts_by_torch(module, opened, tokens, spy.hidden[slot], len(said), frozen)
        same += sum(a == b for a, b in zip(said, expected, strict=True))
        total += len(said)
    assert total > 60
    assert same >= 0.98 * total, f"{same} of {total}"  # sums of float32 have another order in torch: a near tie may fall otherwise


@pytest.mark.parametrize("precision", ["int8", "f32"])
def test_d1_answers_with_a_head_are_those_without(head, precision):
    backend = open_backend(head, precision)
    ways = [
        Sampling(max_tokens=16, ignore_eos=True),
        Sampling(max_tokens=16, ignore_eos=True, temperature=0.8, top_p=0.9, seed=5),
        Sampling(max_tokens=16, temperature=1.0, repetition_penalty=1.2, seed=9, min_tokens=4),
    ]
    samplings = [replace(ways[index % 3], seed=50 + index) for index in range(len(PROMPTS))]
    plain = run(backend, PROMPTS, samplings)
    backend.reset()
    drafted = run(backend, PROMPTS, samplings, drafter=backend.drafter, depth=DEPTH)
    backend.close()
    assert [(out.tokens, out.reason) for out in drafted] == [(out.tokens, out.reason) for out in plain]
    assert sum(out.num_drafted for out in drafted) > 100


def test_a_head_for_another_model_or_of_another_shape_is_refused_by_name(opened, module, head, tmp_path):
    tensors = {name: tensor.detach().half().contiguous() for name, tensor in module.tensors().items()} | {"token_ids": IDS}
    good = {"format": FORMAT, "model_digest": opened.digest}
    for change, metadata, words in [
        ({}, good | {"model_digest": "another"}, "another model"),
        ({}, good | {"format": "older"}, "'older'"),
        ({"proj.weight": torch.zeros(3, 3)}, good, "'proj.weight'"),
        ({"token_ids": IDS.flip(0).contiguous()}, good, "token_ids"),
        ({"extra": torch.zeros(2)}, good, "'extra'"),
    ]:
        path = tmp_path / "bad.safetensors"
        save_file({**tensors, **change}, path, metadata=metadata)
        with pytest.raises(ModelError, match=words):
            open_backend(path, "f32")
    (tmp_path / "cut.safetensors").write_bytes(head.read_bytes()[:1000])
    with pytest.raises(ModelError, match="not a whole"):
        open_backend(tmp_path / "cut.safetensors", "f32")
    other = tiny_models.save(tiny_models.make(tiny_models.configs()["llama"]), tmp_path / "other")
    with pytest.raises(ModelError, match="train-draft"):
        CpuBackend(ExecutorSettings(model=str(other), max_model_len=64, num_blocks=16, drafter="mtp"))
