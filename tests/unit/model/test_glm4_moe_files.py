"""GLM-4-MoE folders: what is refused by name, and the layer that only drafts; and its router where scores leave float32."""

import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executor_svc.model.config import MoeConfig, expected_tensors
from executor_svc.model.errors import ModelError, TensorMismatch
from executor_svc.model.experts import Experts
from executor_svc.model.hf_folder import HfFolder
from executor_svc.model.source import check_tensors
from tests.support import tiny_models


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_group": 3}, "do not make 3 groups"),
        ({"n_group": 8}, "do not make 8 groups"),
        ({"n_group": 4, "topk_group": 5}, "topk_group is 5 of 4"),
        ({"n_group": 4, "topk_group": 1, "num_experts_per_tok": 3}, "a token can choose among 2"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok is 0"),
        ({"partial_rotary_factor": 0.1, "rope_parameters": None}, "leaves 3 to rotate"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported"),
        ({"n_group": "two"}, "'two'"),
        ({"n_routed_experts": None}, "a setting is not what it should be"),
        ({"num_nextn_predict_layers": [1]}, "a setting is not what it should be"),
    ],
)
def test_a_mixture_that_cannot_choose_is_refused(tmp_path, changes, words):
    folder = tiny_models.save(tiny_models.make(tiny_models.configs()["glm4-moe"]), tmp_path)
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(told | changes))
    with pytest.raises(ModelError, match=re.escape(words)):
        HfFolder(folder)


def test_layers_that_only_draft_are_left_alone_and_others_are_not(tmp_path):
    """GLM-4.5 ships one layer more than num_hidden_layers: its multi-token-prediction module."""
    folder = tiny_models.save(tiny_models.make(tiny_models.configs()["glm4-moe"]), tmp_path)
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "model.layers.3.eh_proj.weight": torch.zeros(64, 128)}, folder / "model.safetensors")
    source = HfFolder(folder)
    check_tensors(source.shapes(), need=expected_tensors(source.config))
    save_file({**tensors, "model.layers.4.eh_proj.weight": torch.zeros(64, 128)}, folder / "model.safetensors")
    source = HfFolder(folder)
    with pytest.raises(TensorMismatch, match=r"layers\.4\.eh_proj"):
        check_tensors(source.shapes(), need=expected_tensors(source.config))


def test_scores_that_leave_float32_are_0_and_1_and_warn_nobody():
    config = MoeConfig(first_layer=0, num_experts=4, num_chosen=2, intermediate_size=8, shared_size=8)
    router = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], np.float32)
    experts = Experts([], router=router, bias=np.zeros(4, np.float32), config=config, pad_rows=lambda count: count)
    chosen, weights = experts.route(np.array([[1000, 1], [-1000, 1]], np.float32))
    assert [set(row) for row in chosen.tolist()] == [{0, 2}, {1, 2}]
    np.testing.assert_allclose(weights, [[1 / (1 + 0.7310586), 0.7310586 / (1 + 0.7310586)]] * 2, rtol=1e-6)
