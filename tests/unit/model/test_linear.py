"""Linear layers: right, batch-invariant to the bit, and a probe that notices when they are not."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor_svc.model import floats, precision
from executor_svc.model.config import ModelConfig, RopeConfig
from executor_svc.model.errors import UnsupportedModel
from executor_svc.model.float_linear import Bf16Linear, PackedLinear, TiledLinear
from executor_svc.model.floats import fastest
from executor_svc.model.linear import MAX_ROWS, round_up_rows, row_counts
from executor_svc.model.precision import INTEGERS, choose_precision
from executor_svc.model.probe import InvariantLinears, is_batch_invariant
from kernels.cpu.byte_products import Avx2, Portable, Vnni, Vnni512


def random(*shape: int, seed: int = 5) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 5000))
def test_row_counts_are_few_and_waste_little(count):
    padded = round_up_rows(count)
    assert padded >= max(count, 1)
    assert padded - count <= max(1, count / 2, 8)
    assert round_up_rows(padded) == padded
    assert padded <= MAX_ROWS or padded % 32 == 0


def test_every_part_of_a_cut_batch_is_a_probed_size():
    for count in range(1, 2000):
        parts = [len(part) for part in torch.empty(round_up_rows(count), 1).split(MAX_ROWS)]
        assert set(parts) <= set(row_counts())


@pytest.mark.parametrize("kind", [PackedLinear, TiledLinear])
@pytest.mark.parametrize("shape", [(96, 64), (7, 13), (1, 1), (300, 60)])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "bias"])
def test_equals_float64_and_is_batch_invariant(kind, shape, biased):
    weight, bias = random(*shape), random(shape[0], seed=6) if biased else None
    layer = kind(weight, bias)
    x = random(MAX_ROWS + 64, shape[1], seed=7)
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    torch.testing.assert_close(layer(x).double(), exact, atol=1e-4, rtol=1e-5)
    made = InvariantLinears(max_rows=MAX_ROWS)
    chosen = made(weight, bias)
    assert made.batch_invariant
    assert is_batch_invariant(chosen, in_features=shape[1], max_rows=MAX_ROWS)


WEIGHT = random(32, 24)


def by_size(x: torch.Tensor) -> torch.Tensor:
    return x @ WEIGHT.T + (1e-7 if len(x) == 48 else 0)


def by_place(x: torch.Tensor) -> torch.Tensor:
    return (x @ WEIGHT.T) * torch.where(torch.arange(len(x)) == 37, 1 + 1e-6, 1.0)[:, None]


def by_neighbour(x: torch.Tensor) -> torch.Tensor:
    return x @ WEIGHT.T + x.roll(1, 0).sum(1, keepdim=True) * 1e-6


@pytest.mark.parametrize("layer", [by_size, by_place, by_neighbour])
def test_the_probe_notices(layer):
    assert not is_batch_invariant(layer, in_features=24, max_rows=64)


def test_a_failed_probe_falls_back_to_tiles_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(PackedLinear, "_call", lambda self, x: by_neighbour(x))
    made = InvariantLinears(max_rows=32)
    assert isinstance(made(WEIGHT, None), TiledLinear)
    assert made.batch_invariant
    assert "tiles of 16 rows" in caplog.text


def test_when_even_tiles_fail_nothing_is_claimed(monkeypatch):
    monkeypatch.setattr(PackedLinear, "_call", lambda self, x: by_neighbour(x))
    monkeypatch.setattr(TiledLinear, "__call__", lambda self, x: by_neighbour(x))
    made = InvariantLinears(max_rows=32)
    made(WEIGHT, None)
    assert not made.batch_invariant


def test_bf16_is_near():
    layer = Bf16Linear(WEIGHT, None)
    x = random(5, 24)
    torch.testing.assert_close(layer(x), x @ WEIGHT.T, atol=0.15, rtol=0.02)
    assert layer(x).dtype == torch.float32


CONFIG = ModelConfig(
    family="llama",
    num_layers=1,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=272,
    max_position=512,
    rms_eps=1e-6,
    rope=RopeConfig(theta=1e4),
    windows=(0,),
    tied=False,
    qkv_bias=False,
    qk_norm=False,
)


def test_precision_is_chosen_by_capability_and_measurement():
    assert fastest(CONFIG, flags={})[0] == "f32"
    name, reason = fastest(CONFIG, flags={"avx512_bf16": True})
    assert name in ("f32", "bf16")
    assert "us in bf16" in reason


def test_precision_says_what_it_claims():
    f32, bf16, *integers = (choose_precision(name, config=CONFIG, source=Held(groups=False)) for name in ("f32", "bf16", *INTEGERS))
    assert (f32.name, f32.batch_invariant) == ("f32", True)
    assert (bf16.name, bf16.batch_invariant) == ("bf16", False)
    assert [(one.name, one.batch_invariant) for one in integers] == [("int8", True), ("int8-groups", True)]
    with pytest.raises(UnsupportedModel, match="fp8"):
        choose_precision("fp8", config=CONFIG, source=Held(groups=False))


@dataclass(frozen=True)
class Held:
    """The one question that the choice asks of a file."""

    groups: bool

    def has_groups(self, name: str) -> bool:
        return self.groups


@pytest.mark.parametrize(
    ("form", "name"), [(Vnni512(), "int8"), (Vnni(), "int8"), (Avx2(), "int8-groups"), (Portable(), "int8-groups")]
)
def test_auto_is_integers_of_a_file_of_integers_only(monkeypatch, form, name):
    """Rotated where the processor multiplies bytes by itself, as the file holds them elsewhere."""
    monkeypatch.setattr(precision, "FORM", form)
    assert choose_precision("auto", config=CONFIG, source=Held(groups=True)).name == name
    assert choose_precision("auto", config=CONFIG, source=Held(groups=False)).name not in INTEGERS


def test_batch_invariant_keeps_auto_from_bf16_and_refuses_it_when_asked(monkeypatch):
    """On a processor where bf16 is the faster one."""
    monkeypatch.setattr(floats, "fastest", lambda config: ("bf16", "planted"))
    held = Held(groups=False)
    assert choose_precision("auto", config=CONFIG, source=held).name == "bf16"
    assert choose_precision("auto", config=CONFIG, source=held, batch_invariant=True).name == "f32"
    assert choose_precision("auto", config=CONFIG, source=Held(groups=True), batch_invariant=True).name in INTEGERS
    with pytest.raises(UnsupportedModel, match=r"precision bf16 and batch_invariant"):
        choose_precision("bf16", config=CONFIG, source=held, batch_invariant=True)


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_name_the_tensor_that_is_not_in_groups(name):
    with pytest.raises(UnsupportedModel, match=rf"{name} needs rows that are groups of 32; tensor '.*' has shape"):
        choose_precision(name, config=replace(CONFIG, intermediate_size=100), source=Held(groups=False))


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "bias"])
def test_a_float32_weight_in_integers_is_near_and_batch_invariant(biased, name):
    weight, bias = random(40, 64), random(40, seed=6) if biased else None
    made = choose_precision(name, config=CONFIG, source=Held(groups=False)).make(weight.numpy(), bias.numpy() if biased else None)

    def layer(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(made(x.numpy()))

    x = random(MAX_ROWS, 64, seed=7)
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, weight, bias), atol=0.3, rtol=0.02)
    assert is_batch_invariant(layer, in_features=64, max_rows=MAX_ROWS)
