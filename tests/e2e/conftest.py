"""One real model behind real services, shared by the e2e tests of a worker."""

import asyncio
from collections.abc import Iterator

import openai
import pytest

from tests.support.generate import complete_ways
from tests.support.served import Recorded, Served
from tests.support.shared_inputs import PROMPTS, WAYS


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """SmolLM2-135M-Instruct in float32, one executor, default settings."""
    with Served("--precision", "f32") as running:
        yield running


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """36 mixed requests: greedy, seeded and penalised, with prefix hits and stops, ragged, in one session that has ended."""
    folder = tmp_path_factory.mktemp("recording")
    with Served("--precision", "f32", "--record", str(folder), "--max-num-batched-tokens", "64") as served:
        answers = asyncio.run(complete_ways(served.url, PROMPTS, ways=WAYS))
    return Recorded(folder, answers)


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0, timeout=120) as it:
        yield it
