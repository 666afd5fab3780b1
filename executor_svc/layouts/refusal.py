"""The one error of this room."""

from drumline.errors import PlanRejected


class CacheRefused(PlanRejected):
    """A cache cannot do what a plan asks of it. The message names the slot kind, or the layer and row, and the reason.

    Whoever raises it has changed nothing yet.
    """
