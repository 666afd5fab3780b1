"""Versions of the wire and of the software. A release that changes the meaning of a message raises PROTOCOL_VERSION."""

from typing import Final

SOFTWARE_VERSION: Final = "0.1.0"
PROTOCOL_VERSION: Final = 1
MIN_PROTOCOL_VERSION: Final = 1
"""Oldest wire protocol that this release still speaks."""
TRACE_VERSION: Final = 1
"""Format of recordings; readers refuse a newer one by name and read every older one."""
