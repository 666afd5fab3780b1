"""One real model behind real services, shared by the e2e tests of a worker."""

from collections.abc import Iterator

import openai
import pytest

from tests.support.served import Served


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """SmolLM2-135M-Instruct in float32, one executor, default settings."""
    with Served("--precision", "f32") as running:
        yield running


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0, timeout=120) as it:
        yield it
