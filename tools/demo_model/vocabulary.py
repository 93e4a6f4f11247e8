"""The ids of the demo vocabulary: 4082 byte pairs, then the added tokens in the order of Qwen."""

VOCABULARY = 4096
ADDED = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|mask|>",
]
PLAIN_ADDED = ADDED[7:13]
"""Added tokens that are not special: they are part of what the model says."""

FIRST_ADDED = VOCABULARY - len(ADDED)
END_OF_TEXT = FIRST_ADDED + ADDED.index("<|endoftext|>")
END_OF_TURN = FIRST_ADDED + ADDED.index("<|im_end|>")
MASK = FIRST_ADDED + ADDED.index("<|mask|>")
"""Fills the places of a block that the drafter has to predict."""


def first_end(ids: list[int]) -> int | None:
    """Index of the first id that ends an answer."""
    return next((i for i, token in enumerate(ids) if token in (END_OF_TURN, END_OF_TEXT)), None)
