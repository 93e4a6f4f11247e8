"""`python fake_server.py`: runs the server over an engine that never ends, and prints its port."""

from __future__ import annotations

from fake_engine import FakeEngine

from mtlqwen.chat import ChatTemplate
from mtlqwen.gguf import open_gguf
from mtlqwen.llm import LLM
from mtlqwen.load import demo_model_path
from mtlqwen.server import create_app, run
from mtlqwen.tokenizer import Tokenizer


def main() -> None:
    run.GRACE_S = 0.3
    gguf = open_gguf(demo_model_path())
    tokenizer = Tokenizer.from_gguf(gguf)
    engine = FakeEngine(lambda ids, params: [65] * 1_000_000, step_s=0.005, max_context=2_000_000)
    engine.start()
    template = ChatTemplate.from_gguf(gguf, tokenizer)
    with LLM.over(engine, tokenizer, template, "tiny") as llm, run.bind("127.0.0.1", 0) as listener:
        listener.listen()
        print(listener.getsockname()[1], flush=True)
        run.run(create_app(llm), listener, engine.close)
    print("closed", flush=True)


main()
