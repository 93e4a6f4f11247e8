"""Renders conversations in the Qwen 3.5 chat format, in segments with a training weight."""

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

TOOLS_BEFORE = "# Tools\n\nYou have access to the following functions:\n\n<tools>"
TOOLS_AFTER = """
</tools>

If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>

<IMPORTANT>
Reminder:
- Function calls MUST follow the specified format: an inner <function=...></function> block must \
be nested within <tool_call></tool_call> XML tags
- Required parameters MUST be specified
- You may provide optional reasoning for your function call in natural language BEFORE the \
function call, but NOT after
- If there is no function call available, answer the question like normal with your current \
knowledge and do not tell the user about function calls
</IMPORTANT>"""

ANSWER_WEIGHT = 1.0
"""Marks what the assistant has to produce; reasoning of earlier turns is not rendered."""
EARLIER_ANSWER_WEIGHT = 0.3
USER_WEIGHT = 0.1
TOOLS_WEIGHT = 0.05


class Segment(NamedTuple):
    """A piece of text that is tokenised by itself, and the weight of its tokens in the loss."""

    text: str
    weight: float


class Call(NamedTuple):
    """One function call of the assistant."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Message:
    """A turn; `role` is system, user, assistant or tool. Empty reasoning means thinking is off."""

    role: str
    content: str
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)


class Conversation(NamedTuple):
    messages: list[Message]
    tools: list[dict[str, Any]]


def render(conversation: Conversation) -> list[Segment]:
    """The whole conversation; joined, the texts are what the chat template renders."""
    messages, tools = conversation
    segments = _system(messages[0], tools)
    last_user = max(i for i, message in enumerate(messages) if message.role == "user")
    for i, message in enumerate(messages):
        if message.role == "user":
            text = f"<|im_start|>user\n{message.content}<|im_end|>\n"
            segments.append(Segment(text, USER_WEIGHT))
        elif message.role == "tool":
            opens = messages[i - 1].role != "tool"
            closes = i + 1 == len(messages) or messages[i + 1].role != "tool"
            segments.append(_tool_response(message.content, opens, closes))
        elif message.role == "assistant":
            segments += _assistant(message, is_final=i > last_user)
    return segments


def _system(first: Message, tools: list[dict[str, Any]]) -> list[Segment]:
    content = first.content if first.role == "system" else ""
    if tools:
        listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
        prompt = f"\n\n{content}" if content else ""
        text = f"<|im_start|>system\n{TOOLS_BEFORE}{listed}{TOOLS_AFTER}{prompt}<|im_end|>\n"
        return [Segment(text, TOOLS_WEIGHT)]
    if first.role == "system":
        return [Segment(f"<|im_start|>system\n{content}<|im_end|>\n", USER_WEIGHT)]
    return []


def _tool_response(content: str, opens: bool, closes: bool) -> Segment:
    start = "<|im_start|>user" if opens else ""
    end = "<|im_end|>\n" if closes else ""
    text = f"{start}\n<tool_response>\n{content}\n</tool_response>{end}"
    return Segment(text, USER_WEIGHT)


def _assistant(message: Message, is_final: bool) -> list[Segment]:
    body = message.content
    if message.calls:
        body += ("\n\n" if body else "") + "\n".join(map(_call, message.calls))
    opening, weight = "<|im_start|>assistant\n", EARLIER_ANSWER_WEIGHT
    if is_final:
        weight = ANSWER_WEIGHT
        opening += "<think>\n"
        if message.reasoning:
            body = f"{message.reasoning}\n</think>\n\n{body}"
        else:
            opening += "\n</think>\n\n"
    return [Segment(opening, 0.0), Segment(f"{body}<|im_end|>", weight), Segment("\n", 0.0)]


def _call(call: Call) -> str:
    parameters = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in call.arguments.items()
    )
    return f"<tool_call>\n<function={call.name}>\n{parameters}</function>\n</tool_call>"
