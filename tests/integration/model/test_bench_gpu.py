"""`drumline bench gpu` from end to end, with the emulator for a GPU: every section but the peer's runs and finds nothing wrong."""

import json

import pytest
import torch

from bench import gpu


def test_all_sections_run_and_the_kernels_are_right(tmp_path, capsys):
    file = tmp_path / "gpu.json"
    small = ["--emulated", "--shape", "tiny", "--rows", "3", "--context", "40", "--context", "90", "--steps", "2"]
    sections = ["--section", "kernels", "--section", "attention", "--section", "executor"]
    assert gpu.main([*small, *sections, "--json-file", str(file)]) == 0
    found = json.loads(file.read_text())
    assert all(one["wrong"] == [] and one["num_cases"] > 0 for one in found["kernels"])
    assert [one["most"] for one in found["attention"]] == [40, 90, 90]
    assert all(0 < one["error"] < 5e-3 for one in found["attention"])
    assert [one["context"] for one in found["executor"]] == [40, 90]
    assert "decode attention" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(capsys):
    assert gpu.main(["--section", "kernels"]) == 2
    assert "sees no CUDA device" in capsys.readouterr().err
