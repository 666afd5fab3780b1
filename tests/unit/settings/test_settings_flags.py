"""The flags are a promise to users: changing one shows here. After a wanted change run this file to freeze the new set."""

from pathlib import Path

import pytest

from bench.config import BenchSettings
from bench.curve_config import CurveSettings
from bench.fleet_config import FleetSettings
from bench.gpu_config import GpuSettings
from bench.mtp_config import MtpSettings
from bench.peers_config import PeersSettings
from bench.perplexity_config import PerplexitySettings
from bench.price_config import PriceSettings
from bench.start_config import StartSettings
from bench.step_config import StepSettings
from drumline.settings import SECTIONS, ServiceSettings, flag_of
from executor_svc.config import ExecutorSettings
from executor_svc.training.config import TrainDraftSettings
from gateway.config import GatewaySettings
from launcher.config import ServeSettings
from scheduler_svc.config import SchedulerSettings

FROZEN = Path(__file__).with_name("flags.txt")
KINDS: dict[str, type[ServiceSettings]] = {
    "bench": BenchSettings,
    "curve": CurveSettings,
    "executor": ExecutorSettings,
    "fleet": FleetSettings,
    "gateway": GatewaySettings,
    "gpu": GpuSettings,
    "mtp": MtpSettings,
    "peers": PeersSettings,
    "perplexity": PerplexitySettings,
    "price": PriceSettings,
    "scheduler": SchedulerSettings,
    "serve": ServeSettings,
    "start": StartSettings,
    "step": StepSettings,
    "train_draft": TrainDraftSettings,
}


def flags() -> list[str]:
    return [f"{section} {flag_of(field)}" for section, kind in sorted(KINDS.items()) for field in sorted(kind.model_fields)]


def test_the_set_of_flags_is_frozen() -> None:
    assert flags() == FROZEN.read_text().split("\n")[:-1]


def test_every_section_has_settings() -> None:
    assert sorted(KINDS) == sorted(SECTIONS)


@pytest.mark.parametrize("section", KINDS)
def test_every_setting_says_what_it_means_and_is_frozen(section: str) -> None:
    kind = KINDS[section]
    assert kind.model_config["frozen"]
    assert kind.__doc__
    for name, field in kind.model_fields.items():
        assert field.description, name
        assert field.description.rstrip().endswith((".", ")")), f"{name}: {field.description}"


def test_flags_that_vllm_has_too_are_spelt_as_there() -> None:
    wanted = ["--max-model-len", "--served-model-name", "--max-num-seqs", "--max-num-batched-tokens", "--model", "--api-key"]
    assert {f"serve {flag}" for flag in wanted} <= set(flags())


if __name__ == "__main__":
    FROZEN.write_text("".join(f"{line}\n" for line in flags()))
