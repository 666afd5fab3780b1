"""GLM-4-MoE drafts with its own layer: every draft and its logits against transformers' `MtpModel`, which its
`MTPCandidateGenerator` runs, on a checkpoint whose weights the test writes.

Row D8 of domain.md.
"""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from executor_svc.backends.cpu import CpuBackend
from executor_svc.config import ExecutorSettings
from executor_svc.model.errors import TensorMismatch
from executor_svc.plan import Sampling
from tests.support import tiny_models
from tests.support.drafted import run

PROMPTS = [[5, 44, 97], [12, 8, 200, 33, 91, 7, 140, 60, 2, 250, 18, 77, 31, 9, 104, 66, 41], [*range(40, 75)]]
NUM_TOKENS = 24


def own_layer(module: MtpModel, behind: int) -> dict[str, torch.Tensor]:
    """The module's tensors under the names that checkpoints have."""
    names = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "post_norm": "shared_head.norm"}
    prefix, found = f"model.layers.{behind}.", {}
    for name, tensor in module.layers[0].state_dict().items():
        part = name.removeprefix("mtp_block.")
        if part.endswith("experts.gate_up_proj"):
            for expert, whole in enumerate(tensor):
                gate, up = whole.chunk(2)
                found[f"{prefix}mlp.experts.{expert}.gate_proj.weight"] = gate
                found[f"{prefix}mlp.experts.{expert}.up_proj.weight"] = up
        elif part.endswith("experts.down_proj"):
            for expert, down in enumerate(tensor):
                found[f"{prefix}mlp.experts.{expert}.down_proj.weight"] = down
        else:
            stem, _, end = part.rpartition(".")
            found[prefix + (f"{names[stem]}.{end}" if stem in names else part)] = tensor
    return {name: tensor.clone().contiguous() for name, tensor in found.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    model = tiny_models.make(tiny_models.glm4_moe_config())
    torch.manual_seed(8)
    module = MtpModel(model, 1)
    with torch.no_grad():
        for name, parameter in module.layers.named_parameters():
            parameter.uniform_(0.5, 1.5) if "norm" in name else parameter.normal_(0, 0.15)
        for name, buffer in module.layers.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0, 0.2)
    folder = tiny_models.save(model, tmp_path_factory.mktemp("glm"))
    path = folder / "model.safetensors"
    save_file(load_file(path) | own_layer(module, model.config.num_hidden_layers), path)
    return folder


@pytest.fixture(scope="module")
def oracle(folder):
    """(model, its module), both read from the folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    # transformers knows this layer by its number in the published checkpoints
    model._keys_to_ignore_on_load_unexpected = {r"model\.layers\.3.*"}
    return model, MtpModel.from_pretrained(model).train(mode=False)


class Spy:
    """Writes down what the drafter knew, said and thought."""

    name = "spy"

    def __init__(self, drafter) -> None:
        self.drafter = drafter
        self.said: list[tuple[list[int], list[int], np.ndarray]] = []
        self._logits: list[np.ndarray] = []
        head, think = drafter._head, drafter._head.scores  # of all tokens: it drafts the whole vocabulary

        def scores(states):
            self._logits.append(think(states))
            return self._logits[-1]

        head.scores = scores

    def observe(self, batch, hidden):
        self.drafter.observe(batch, hidden)

    def forget(self):
        self.drafter.forget()

    def propose(self, slots, rows, *, most):
        self._logits.clear()
        drafts = self.drafter.propose(slots, rows, most=most)
        going = np.flatnonzero(drafts.counts > 0)
        for place, row in enumerate(going):
            known = slots.tokens[rows[row], : slots.num_known[rows[row]]].tolist()
            said = drafts.token_ids[row, : drafts.counts[row]].tolist()
            self.said.append((known, said, self._logits[0][place].copy()))
        return drafts


def open_backend(folder, **more) -> CpuBackend:
    told = {"precision": "f32", "num_blocks": 64, "max_num_seqs": 8, "num_threads": 1, **more}
    return CpuBackend(ExecutorSettings(model=str(folder), **told))


@torch.inference_mode()
def draft_of(oracle, tokens: list[int]) -> tuple[int, np.ndarray]:
    """What transformers drafts behind a text, from nothing: id and logits."""
    model, module = oracle
    hidden = model(torch.tensor([tokens[:-1]]), output_hidden_states=True, use_cache=False).hidden_states[-1]
    cache = MtpCache(config=model.config.get_mtp_config())
    positions = torch.arange(1, len(tokens))[None]
    ids, logits, _ = module(
        input_ids=torch.tensor([tokens[1:]]),
        last_hidden_states=hidden,
        attention_mask=None,
        position_ids=positions,
        mtp_cache=cache,
    )
    return int(ids[0, 0]), logits[0, 0].numpy()


def test_d8_every_draft_and_its_logits_are_those_of_transformers(folder, oracle):
    backend = open_backend(folder)
    assert backend.info.drafter == "mtp"  # auto: the checkpoint has what it takes
    spy = Spy(backend.drafter)
    outputs = run(backend, PROMPTS, [Sampling(max_tokens=NUM_TOKENS, ignore_eos=True)] * len(PROMPTS), drafter=spy, depth=1)
    backend.close()
    assert len(spy.said) >= 2 * NUM_TOKENS
    for known, said, logits in spy.said:
        expected, theirs = draft_of(oracle, known)
        np.testing.assert_allclose(logits, theirs, atol=1e-4, rtol=1e-4)
        assert said == [expected]
    assert len({tuple(said) for _, said, _ in spy.said}) > 5
    for prompt, out in zip(PROMPTS, outputs, strict=True):
        options = {"do_sample": False, "max_new_tokens": NUM_TOKENS, "min_new_tokens": NUM_TOKENS, "eos_token_id": None}
        text = oracle[0].generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), **options)
        assert [*prompt, *out.tokens] == text[0].tolist()


@pytest.mark.parametrize("depth", [1, 3])
def test_d1_answers_with_its_drafts_are_those_without(folder, depth):
    ways = [
        Sampling(max_tokens=NUM_TOKENS, ignore_eos=True),
        Sampling(max_tokens=NUM_TOKENS, ignore_eos=True, temperature=0.8, top_p=0.9, seed=5),
        Sampling(max_tokens=NUM_TOKENS, ignore_eos=True, temperature=1.0, repetition_penalty=1.2, seed=9),
    ]
    backend = open_backend(folder)
    plain = run(backend, PROMPTS, ways)
    backend.reset()
    drafted = run(backend, PROMPTS, ways, drafter=backend.drafter, depth=depth)
    assert [out.tokens for out in drafted] == [out.tokens for out in plain]
    assert sum(out.num_drafted for out in drafted) > NUM_TOKENS
    backend.close()


def test_a_module_that_is_not_whole_is_refused_by_name_where_it_is_wanted(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.3.eh_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(TensorMismatch, match=r"layers\.3\.eh_proj\.weight' has shape None"):
        open_backend(tmp_path)
    backend = open_backend(tmp_path, drafter="none")
    assert (backend.info.drafter, backend.drafter) == ("none", None)
    backend.close()
