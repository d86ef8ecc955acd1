"""A file would be shown under another quantisation's name.

The quantisation that a file's name or its header says.
"""

import gguf
import pytest

from autolayers.model.quantisation import FILE_TYPES, quantisation


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("Qwen3-8B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("a/GLM-4.6-Q4_K_M-00001-of-00005.gguf", "Q4_K_M"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("qwen3-8b-q8_0", "Q8_0"),
        ("blobs/sha256-2bada8a7", "Q5_K_M"),
        ("model.gguf", "Q5_K_M"),
    ],
)
def test_the_name_comes_before_the_header(path: str, kind: str) -> None:
    assert quantisation(path, {"general.file_type": 17}) == kind


@pytest.mark.parametrize("metadata", [{}, {"general.file_type": 999}, {"general.file_type": "15"}])
def test_nothing_is_guessed(metadata: dict[str, object]) -> None:
    assert quantisation("model.gguf", metadata) == ""


def test_file_types_are_those_of_llama_cpp() -> None:
    known = {int(kind): kind.name for kind in gguf.LlamaFileType}
    for number in FILE_TYPES.keys() & known.keys():
        name = known[number].removeprefix("ALL_").removeprefix("MOSTLY_")
        assert name.startswith(FILE_TYPES[number])
    assert len(FILE_TYPES.keys() & known.keys()) >= 30
