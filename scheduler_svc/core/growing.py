"""Which residents could name a block that nobody has named yet.

Blocks that decodes fill are named and published when somebody looks for them, or with all of a sequence's when it gives them back:
one loop over a sequence costs less than half of what visiting it at every block does. Residents are kept by the last name that
they published: whoever holds a block of a chain that is looked for, and has not named it, is kept under a name of that chain.
"""

from collections.abc import Iterable, Iterator

from scheduler_svc.core.sequence import Sequence, by_key


class GrowingChains:
    """Residents that decode, by the name of their last published block, or their chain's root."""

    def __init__(self) -> None:
        self._by_name: dict[bytes, dict[int, Sequence]] = {}
        self._names: dict[int, bytes] = {}
        self._looked: dict[bytes, int] = {}

    def __iter__(self) -> Iterator[int]:
        """Keys."""
        return iter(self._names)

    def name_of(self, seq: Sequence) -> bytes | None:
        """What it is kept under; None = it is not."""
        return self._names.get(seq.request.key)

    def put(self, seq: Sequence, name: bytes) -> None:
        """Keeps a sequence under its last name, and no longer under the one before."""
        self.remove(seq)
        self._names[seq.request.key] = name
        self._by_name.setdefault(name, {})[seq.request.key] = seq
        self._looked.pop(name, None)

    def remove(self, seq: Sequence) -> None:
        """Forgets a sequence; nothing happens when it is not kept."""
        name = self._names.pop(seq.request.key, None)
        if name is not None:
            bucket = self._by_name[name]
            del bucket[seq.request.key]
            if not bucket:
                del self._by_name[name]
                self._looked.pop(name, None)

    def may_name(self, name: bytes, *, step: int) -> bool:
        """Whether `take` would find residents under `name`."""
        return name in self._by_name and self._looked.get(name) != step

    def take(self, names: Iterable[bytes], *, step: int) -> list[Sequence]:
        """Residents under any of `names` that nobody has taken since the result `step`, before which none of them has grown."""
        taken: list[Sequence] = []
        for name in self._by_name.keys() & set(names) if self._by_name else ():
            if self._looked.get(name) != step:
                self._looked[name] = step
                taken += self._by_name[name].values()
        return sorted(taken, key=by_key)
