"""The text of a CUDA source with its own headers in it: NVRTC needs no include path, and CuPy's cache key sees all of it."""

import re
from functools import cache
from importlib.resources import files
from typing import Final

_INCLUDE: Final = re.compile(r'#include\s+"([^"]+)"')


@cache
def flat_source(stem: str) -> str:
    """`<stem>.cu` with every `#include "..."` replaced by the file, each once; messages name file and line as they were written."""
    return "\n".join(_lines(f"{stem}.cu", set())) + "\n"


def _lines(name: str, seen: set[str]) -> list[str]:
    seen.add(name)
    out = [f'#line 1 "{name}"']
    text = (files(__package__) / name).read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
        match = _INCLUDE.fullmatch(line.strip())
        if match and match[1] not in seen:
            out += [*_lines(match[1], seen), f'#line {number + 1} "{name}"']
        else:
            out.append("" if match or line == "#pragma once" else line)
    return out
