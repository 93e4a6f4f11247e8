"""What metal-cpp says of Metal's interface: which class has which method, with which types.

metal-cpp is generated from Apple's SDK: a C++ class for each class or protocol, and for each of its
methods an inline function that sends one selector.
"""

from __future__ import annotations

import re
from pathlib import Path

_SELECTOR = re.compile(r'_MTL_PRIVATE_DEF_SEL\(\s*(\w+),\s*"([^"]+)"\)')
_LINE = re.compile(
    r"^namespace (?P<space>MTL4?)$"
    r"|^class (?P<name>\w+) : public NS::\w+<\w+(?:, (?P<parent>[\w:]+))?>"
    r"|^_MTL_(?:ENUM|OPTIONS)\(NS::(?P<kind>\w+), (?P<enum>\w+)\)",
    re.M,
)
_METHOD = re.compile(
    r"^_MTL_INLINE (?P<result>[^\n]+?) (?P<owner>MTL4?::\w+)::\w+\((?P<parameters>[^\n]*)\)"
    r"(?: const)?\n\{\n[^\n]*_MTL_PRIVATE_SEL\((?P<accessor>\w+)\)",
    re.M,
)
_BLOCK = re.compile(r"\w+ \(\^(\w+)\)\([^)]*\)")
_ENCODINGS = {
    "void": "v",
    "bool": "Z",
    "NS::UInteger": "Q",
    "uint64_t": "Q",
    "MTL::GPUAddress": "Q",
    "NS::Integer": "q",
    "uint8_t": "C",
    "CFTimeInterval": "d",
    "MTL::Size": "{MTLSize=QQQ}",
    "NS::Range": "{_NSRange=QQ}",
}


class MetalCpp:
    """The headers in a folder `Metal` of metal-cpp."""

    def __init__(self, folder: Path):
        self._parents: dict[str, str] = {}  # of every class
        self._encodings = dict(_ENCODINGS)
        texts = [path.read_text() for path in sorted(folder.glob("MTL*.hpp"))]
        for text in texts:
            self._read_types(text)
        selectors = dict(_SELECTOR.findall((folder / "MTLHeaderBridge.hpp").read_text()))
        self._methods = {
            (match["owner"], selectors[match["accessor"]]): self._signature(match)
            for text in texts
            for match in _METHOD.finditer(text)
            if match["accessor"] in selectors
        }
        self.selectors = {selector for _, selector in self._methods}

    def find(self, owner: str, selector: str) -> list[str] | None:
        """Types of the result and the arguments of a method of a class ("MTLDevice"), also where it
        inherits it; None if it has no such method.
        """
        space = "MTL4" if owner.startswith("MTL4") else "MTL"
        name = f"{space}::{owner.removeprefix(space)}"
        while name:
            if (name, selector) in self._methods:
                return self._methods[name, selector]
            name = self._parents.get(name, "")
        return None

    def _read_types(self, text: str) -> None:
        space = ""
        for match in _LINE.finditer(text):
            if match["space"]:
                space = match["space"]
            elif match["name"]:
                parent = match["parent"] or ""
                is_bare = parent and "::" not in parent
                name = f"{space}::{match['name']}"
                self._parents[name] = f"{space}::{parent}" if is_bare else parent
            else:
                kind = "q" if match["kind"] == "Integer" else "Q"
                self._encodings[f"{space}::{match['enum']}"] = kind

    def _signature(self, match: re.Match[str]) -> list[str]:
        parameters = _BLOCK.sub(r"Block \1", match["parameters"])
        types = [match["result"]]
        for parameter in filter(None, parameters.split(", ")):
            is_array = parameter.endswith("[]")
            types.append("void**" if is_array else re.sub(r"\w+$", "", parameter))
        return [self._encoding(text) for text in types]

    def _encoding(self, text: str) -> str:
        text = re.sub(r"\bconst\b|[\s&]", "", text)
        if text.endswith("**"):
            return "^"
        if text.endswith("*"):
            is_object = text[:-1] in self._parents or text.startswith("NS::")
            return "@" if is_object else "^"
        if text == "Block" or text.endswith(("Handler", "Function")):
            return "@?"
        return self._encodings.get(text, f"?{text}")
