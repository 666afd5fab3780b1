"""The arms of the price: three layouts under rules that mix lengths, paged also with one plan in flight like the dense ones."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PriceArm:
    """One server under test. `letter` is the layout's name in docs/ragged_cohorts.md."""

    letter: str
    name: str
    admission: str
    layout: str
    plans_in_flight: int


ARMS: Final = (
    PriceArm("A", "aligned", "ragged", "aligned", 1),
    PriceArm("B", "stripped", "ragged", "stripped", 1),
    PriceArm("C", "paged, 1 plan in flight", "paged", "paged", 1),
    PriceArm("C2", "paged, 2 plans, as served", "paged", "paged", 2),
)
BASE: Final = ARMS[0]
