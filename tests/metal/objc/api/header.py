"""What our headers say of Metal's interface, by clang's syntax tree; where it is not the facts."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..macos.link import COMPILER, SDK

Node = dict[str, Any]
FACTS = Path(__file__).with_name("facts.json")

_POINTERS = re.compile(r"\*\s*\*|\*\*")
_ENCODINGS = {
    "void": "v",
    "NSUInteger": "Q",
    "unsigned long": "Q",
    "uint64_t": "Q",
    "NSInteger": "q",
    "long": "q",
    "BOOL": "Z",
    "uint8_t": "C",
    "CFTimeInterval": "d",
    "MTLSize": "{MTLSize=QQQ}",
    "NSRange": "{_NSRange=QQ}",
}


def read_headers(sdk: Path = SDK) -> dict[str, Any]:
    """{methods: {"MTLDevice name": [type encodings: result, arguments]}, constants: {name: value},
    structs: {name: [fields]}}"""
    command = [COMPILER, "--target=arm64-apple-macos14.0", "-fobjc-arc", "-fblocks", "-w"]
    command += ["-nostdlibinc", "-isystem", str(sdk / "libc"), "-isystem", str(sdk)]
    command += ["-x", "objective-c", "-Xclang", "-ast-dump=json", "-fsyntax-only"]
    command += ["-include", "Metal/Metal.h", "/dev/null"]
    tree = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    known = dict(_ENCODINGS)
    found: dict[str, Any] = {"methods": {}, "constants": {}, "structs": {}}
    for node, owner in _walk(tree, ""):
        kind, name = node.get("kind"), node.get("name", "")
        if kind == "EnumDecl" and name:
            fixed = node.get("fixedUnderlyingType", {}).get("qualType", "")
            known[name] = "q" if fixed in ("NSInteger", "long") else "Q"
        elif kind == "ObjCInterfaceDecl":
            known[f"{name} *"] = "@"
        elif kind == "EnumConstantDecl" and name.startswith("MTL"):
            found["constants"][name] = int(_value(node) or 0)
        elif kind == "ObjCMethodDecl" and owner.startswith("MTL"):
            found["methods"][f"{owner} {name}"] = _signature(node, known)
        elif kind == "TypedefDecl" and name.startswith("MTL"):
            found["structs"].setdefault(name, [])
        elif kind == "FieldDecl":
            found["structs"].setdefault(owner, []).append(name)
    found["structs"] = {k: v for k, v in found["structs"].items() if v and k.startswith("MTL")}
    return found


def differences(headers: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    """One line for each thing of our headers that Apple's metadata lacks or has otherwise."""
    lines = []
    selectors = {method.split()[1] for method in facts["methods"]}
    for method, ours in headers["methods"].items():
        selector = method.split()[1]
        theirs, of_any_class = facts["methods"].get(method), facts["selectors"].get(selector)
        if theirs is None and selector in selectors:
            lines.append(f"-[{method}]: a method of other classes")
        elif theirs is None and of_any_class is None:
            lines.append(f"-[{method}]: unknown selector")
        elif theirs not in (None, ours):
            lines.append(f"-[{method}]: {ours}, but {theirs}")
        elif of_any_class is not None and not _agree(ours, of_any_class):
            lines.append(f"-[{method}]: {ours}, but {of_any_class} in the other source")
    for name, value in headers["constants"].items():
        if facts["constants"].get(name) != value:
            lines.append(f"{name}: {value}, but {facts['constants'].get(name)}")
    for name, fields in headers["structs"].items():
        if facts["structs"].get(name) != fields:
            lines.append(f"struct {name}: {fields}, but {facts['structs'].get(name)}")
    return lines


def _agree(ours: list[str], theirs: list[str]) -> bool:
    """Equal; "?" is not told. Metadata is by selector: a sign may be that of another class."""
    if len(ours) != len(theirs):
        return False
    return all(
        their in ("?", our) or {our, their} <= {"q", "Q"}
        for our, their in zip(ours, theirs, strict=True)
    )


def _walk(node: Node, owner: str, struct: str = "") -> Iterator[tuple[Node, str]]:
    yield node, owner
    children = node.get("inner", [])
    for index, child in enumerate(children):
        name = owner
        if child.get("kind") in ("ObjCProtocolDecl", "ObjCInterfaceDecl"):
            name = child.get("name", "")
        elif child.get("kind") == "RecordDecl":  # typedef struct {...} name: the typedef follows
            name = child.get("name") or children[min(index + 1, len(children) - 1)].get("name", "")
        yield from _walk(child, name)


def _value(node: Node) -> str | None:
    if "value" in node:
        return str(node["value"])
    return next((v for v in map(_value, node.get("inner", [])) if v is not None), None)


def _signature(node: Node, known: dict[str, str]) -> list[str]:
    arguments = [child for child in node.get("inner", []) if child["kind"] == "ParmVarDecl"]
    types = [node["returnType"], *(argument["type"] for argument in arguments)]
    return [_encoding(item["qualType"], known) for item in types]


def _encoding(text: str, known: dict[str, str]) -> str:
    text = re.sub(r"\b_N\w+\b|\s*__\w+|\bconst\b", "", text)
    text = re.sub(r"\s+", " ", text).strip()
    if text in known:
        return known[text]
    if "(^" in text:
        return "@?"
    is_object = text.startswith(("id", "NS", "instancetype"))
    return "@" if is_object and not _POINTERS.search(text) else "^"
