"""`drumline bench perplexity`: transformers' loss says the same, ratios are to float32, and the text never changes."""

import hashlib
import json
import math

import pytest
import torch
from tokenizers import Tokenizer

from bench.perplexity import Figure, main, ratios
from bench.perplexity_config import TEXT
from tests.support import tiny_models

WINDOW = 48


@pytest.fixture(scope="module")
def model():
    return tiny_models.make(tiny_models.configs()["llama"])


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    return tiny_models.save(model, tmp_path_factory.mktemp("perplexity") / "tiny-llama")


@pytest.fixture(scope="module")
def measured(folder, tmp_path_factory):
    """The command on the tiny model, float32 last: its JSON."""
    file = tmp_path_factory.mktemp("out") / "figures.json"
    words = ["--model", str(folder), "--window", str(WINDOW), "--num-windows", "3", "--num-threads", "1", "--json-file", str(file)]
    assert main([*words, "--precision", "int8", "--precision", "f32"]) == 0
    return json.loads(file.read_text())


def test_transformers_finds_the_same_perplexity(measured, model, folder):
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT.read_text(), add_special_tokens=False).ids
    windows = torch.tensor(ids[: 3 * WINDOW]).reshape(3, WINDOW)
    with torch.no_grad():
        loss = model(windows, labels=windows).loss.item()
    figures = {figure["precision"]: figure for figure in measured["figures"]}
    assert figures["f32"]["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert figures["f32"]["num_predicted"] == 3 * (WINDOW - 1)
    assert 0 < abs(figures["int8"]["perplexity"] / figures["f32"]["perplexity"] - 1) < 0.05
    assert figures["int8"]["ratio"] == figures["int8"]["perplexity"] / figures["f32"]["perplexity"]


def test_the_text_never_changes(measured):
    """Figures of docs/performance.md are of this text. It is a copy on purpose; a better text gets a name of its own."""
    digest = hashlib.sha256(TEXT.read_bytes()).hexdigest()
    assert digest == measured["text_sha256"] == "1f420960effe752099940700d273b7d6b26d5ffee4e341ac5bc84afb3ec36b27"


def test_without_float32_there_is_no_ratio():
    one = Figure(precision="int8", kv_cache_dtype="float16", kernels=(), perplexity=20.0, num_predicted=1, seconds=1.0)
    assert ratios([one]) == [None]


def test_what_cannot_be_measured_is_said(folder, tmp_path, capsys):
    short = tmp_path / "short.txt"
    short.write_text("one two")
    words = ["--model", str(folder), "--num-threads", "1"]
    assert main([*words, "--text", str(short)]) == 1
    assert "a window has 512" in capsys.readouterr().err
    assert main([*words, "--text", str(tmp_path / "none.txt")]) == 1
    with pytest.raises(SystemExit) as end:
        main(["--precision", "fp8"])
    assert end.value.code == 2
