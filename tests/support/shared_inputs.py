"""The inputs that the ten comparisons share (O1-O10 of the field reports)."""

MODEL = "SmolLM2-135M-Instruct"
PROMPTS = [
    "The capital of France is",
    "Here is the English alphabet: ABC",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea, there lived",
    "1, 1, 2, 3, 5, 8,",
    "serving " * 48,
    "Translate to French: Good morning, my friend.",
    "    indented\n\ttabbed\n  text   with   runs",
    "Žluťoučký kůň 😀 한국어 ไทย 🫠🥹",
    "Alice: Ask me any question.\nBob: What color is the sky on Mars",
    "The quick brown fox jumps over the lazy dog. " * 12,
    "Answer with one word: is water wet?",
]
GREEDY = {"temperature": 0.0}
SEEDED = {"temperature": 0.8, "top_p": 0.9, "seed": 1234}
PENALISED = {"temperature": 0.7, "seed": 7, "presence_penalty": 0.5, "frequency_penalty": 0.5}
WAYS = {"greedy": GREEDY, "seeded": SEEDED, "penalised": PENALISED}
