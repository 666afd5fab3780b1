"""Every limit on what may come in, as data. `drumline.validation` applies them at all three entrances."""

from typing import Final

# HTTP
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
MAX_HEADER_BYTES: Final = 16 * 1024
MAX_HEADERS: Final = 100
HEADER_TIMEOUT_S: Final = 10.0
MAX_REQUEST_ID_CHARS: Final = 128
STREAM_BUFFER_BYTES: Final = 256 * 1024
"""Unread bytes that one slow streaming client may hold."""
SLOW_CLIENT_TIMEOUT_S: Final = 60.0
"""A client that reads nothing for this long is cut."""

MAX_BODY_FIELDS: Final = 128
"""Of one object in a body, whatever they are called: every unknown field is an error of its own, and errors cost time."""
MAX_TOKENIZE_CHARS: Final = 512 * 1024
MAX_DETOKENIZE_TOKENS: Final = 128 * 1024

# Requests
MAX_CHOICES: Final = 8
MAX_PROMPTS: Final = 64
MAX_SEQUENCES_PER_REQUEST: Final = 128
MAX_PROMPT_TOKENS_PER_REQUEST: Final = 4 * 1024 * 1024
"""Of all its sequences together; at 5 bytes an id at most, one request's message stays far below MAX_GRPC_MESSAGE_BYTES."""
MAX_MESSAGES: Final = 2048
MAX_STOP_STRINGS: Final = 4
MAX_STOP_STRING_CHARS: Final = 256
MAX_STOP_TOKEN_IDS: Final = 64
MAX_LOGIT_BIAS: Final = 300
MAX_LOGIT_BIAS_ABS: Final = 100.0
MAX_TOP_LOGPROBS: Final = 20
MAX_TEMPERATURE: Final = 2.0
MAX_PENALTY_ABS: Final = 2.0
MIN_REPETITION_PENALTY: Final = 0.01
MAX_REPETITION_PENALTY: Final = 10.0
MAX_CACHE_SALT_CHARS: Final = 128
MAX_TENANT_CHARS: Final = 128
MAX_TIMEOUT_MS: Final = 3_600_000

# Seams
MAX_GRPC_MESSAGE_BYTES: Final = 64 * 1024 * 1024
MAX_PLANS_QUEUED: Final = 16
"""Plans that an executor holds before it stops reading the stream."""
MAX_GATEWAY_BACKLOG_MESSAGES: Final = 4096
"""Messages that the scheduler holds for a gateway that does not read before it drops that gateway."""
KEEPALIVE_TIME_MS: Final = 20_000
KEEPALIVE_TIMEOUT_MS: Final = 5_000

# Recordings
MAX_TRACE_FRAME_BYTES: Final = 64 * 1024 * 1024
MAX_TRACE_SEGMENT_BYTES: Final = 256 * 1024 * 1024
