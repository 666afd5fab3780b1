"""A service's Prometheus exposition as numbers."""

from collections.abc import Mapping
from typing import Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

PREFIX: Final = "drumline:"
Samples = Mapping[str, float]
"""Name without prefix -> sum over labels. A name that is not exposed is absent, never 0."""


async def scrape(url: str) -> Samples:
    """Reads it once. Raises httpx.HTTPError."""
    async with httpx.AsyncClient(trust_env=False, timeout=10) as http:
        text = (await http.get(url)).raise_for_status().text
    return samples_of(text)


def samples_of(text: str) -> Samples:
    """The numbers of an exposition."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix(PREFIX)
            found[name] = found.get(name, 0.0) + sample.value
    return found
