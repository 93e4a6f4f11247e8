"""Our headers of Metal against facts from Apple's metadata; see api/extract_facts.py."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from .api import header
from .macos import link


@pytest.fixture(scope="module")
def facts():
    return json.loads(header.FACTS.read_text())


@pytest.fixture(scope="module", autouse=True)
def compiler():
    if shutil.which(link.COMPILER) is None:
        pytest.skip(f"{link.COMPILER} is not installed (package clang-22)")


def test_headers_agree_with_the_facts(facts):
    headers = header.read_headers()
    assert header.differences(headers, facts) == []
    assert len(headers["methods"]) > 70
    assert len(headers["constants"]) > 30
    assert len(headers["structs"]) == 3


def test_the_shim_uses_no_metal_name_that_the_headers_lack():
    """It could not compile: the headers are the only ones there are. Here, for macOS as well."""
    for source in link.ROOT.glob("shim/metal/*.m"):
        assert set(re.findall(r"#import <(\w+)/", source.read_text())) <= {"Metal", "Foundation"}


@pytest.mark.parametrize(
    ("file", "old", "new", "report"),
    [
        ("MetalTypes.h", "MTLSparsePageSize64 = 102", "MTLSparsePageSize64 = 64", "Size64: 64"),
        ("MetalTypes.h", "MTLHeapTypePlacement = 1", "MTLHeapTypePlacement = 2", "Placement: 2"),
        ("MetalTypes.h", "bufferRange", "tileRange", "struct MTL4UpdateSparse"),
        ("Metal.h", "supportsPlacementSparse", "supportsPlacementSparseBuffers", "unknown"),
        ("Metal.h", "maxCompatiblePlacementSparsePageSize", "maxPageSize", "unknown"),
        ("Metal.h", "operations:(const MTL4UpdateSparseBufferMappingOperation *)operations",
         "operations:(id)operations", "updateBufferMappings"),
        ("Metal.h", "placementSparsePageSize:(MTLSparsePageSize)size",
         "placementSparsePageSize:(id)size", "placementSparsePageSize"),
        ("Metal.h", "MTLHeapType type", "MTLStorageMode type", "setType"),
        ("Metal.h", "- (void)memoryBarrierWithScope:", "- (void)fillBuffer:(id)b range:(NSRange)r "
         "value:(uint8_t)v;\n- (void)memoryBarrierWithScope:", "a method of other classes"),
    ],
)  # fmt: skip
def test_a_fault_in_the_headers_is_reported(facts, tmp_path, file, old, new, report):
    sdk = tmp_path / "sdk"
    shutil.copytree(link.SDK, sdk)
    path = sdk / "Metal" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    lines = header.differences(header.read_headers(sdk), facts)
    assert any(report in line for line in lines), lines
