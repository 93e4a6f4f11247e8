"""The loop of `chat`: what ends an answer, and what ends the conversation."""

from __future__ import annotations

from mtlqwen import LLM, SamplingParams
from mtlqwen.commands.chat import Conversation
from mtlqwen.commands.terminal import Reporter


def test_ctrl_c_before_an_answer_begins_takes_back_the_question_only(monkeypatch, capsys):
    lines = ["What is 17 + 25?", "What is 17 + 25?", "/exit"]
    monkeypatch.setattr("builtins.input", lambda *prompt: lines.pop(0))
    asked = []
    with LLM(ctx=256, threads=1) as llm:
        stream = llm.stream

        def interrupted_once(messages, *args, **kwargs):
            asked.append(messages)
            if len(asked) == 1:
                raise KeyboardInterrupt
            return stream(messages, *args, **kwargs)

        monkeypatch.setattr(llm, "stream", interrupted_once)
        Conversation(llm, SamplingParams(max_tokens=20), Reporter(False), None, False).run()
    assert asked[0] == asked[1]
    assert "17 + 25 = 42" in capsys.readouterr().out
