"""`drumline bench gpu` from end to end, with the emulator for a GPU: every section runs and finds nothing wrong."""

import json

import pytest
import torch

from bench import gpu


def test_all_sections_run_and_the_kernels_are_right(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu, "_PROMPT", 20)
    monkeypatch.setattr(gpu, "_OUTPUT", 4)
    file = tmp_path / "gpu.json"
    small = ["--emulated", "--shape", "tiny", "--rows", "3", "--context", "40", "--context", "90", "--steps", "2"]
    assert gpu.main([*small, "--json-file", str(file)]) == 0
    found = json.loads(file.read_text())
    assert all(one["wrong"] == [] and one["num_cases"] > 0 for one in found["kernels"])
    assert [one["most"] for one in found["attention"]] == [40, 90, 90]
    assert all(0 < one["error"] < 5e-3 for one in found["attention"])
    assert [one["context"] for one in found["executor"]] == [40, 90]
    assert all(found["transformers"][engine]["tokens_per_s"] > 0 for engine in ("executor", "transformers"))
    assert "decode attention" in capsys.readouterr().out


def test_a_context_that_the_shape_has_no_room_for_is_said_before_anything_runs(capsys):
    assert gpu.main(["--emulated", "--shape", "tiny", "--context", "600"]) == 2
    assert "--context 600; shape tiny has room for 456" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(capsys):
    assert gpu.main(["--section", "kernels"]) == 2
    assert "sees no CUDA device" in capsys.readouterr().err
