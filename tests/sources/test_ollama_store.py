"""A name that Ollama knows would not be found.

From a name to the files of Ollama's local store.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fake_ollama import make_store
from support import ROOT

from autolayers.errors import ModelError
from autolayers.sources.ollama.store import Name, NotInStore, StoreUnreadable, find, names, roots

GGUF = ROOT / "fixtures/headers/llama-3.1-8b-q4_k_m.gguf"


@pytest.mark.parametrize(
    ("text", "parts", "short"),
    [
        ("llama3.1", ("registry.ollama.ai", "library", "llama3.1", "latest"), "llama3.1:latest"),
        ("llama3.1:8b", ("registry.ollama.ai", "library", "llama3.1", "8b"), "llama3.1:8b"),
        ("me/m", ("registry.ollama.ai", "me", "m", "latest"), "me/m:latest"),
        ("hf.co/user/repo:Q4_K_M", ("hf.co", "user", "repo", "Q4_K_M"), "hf.co/user/repo:Q4_K_M"),
        ("localhost:5000/ns/m:t", ("localhost:5000", "ns", "m", "t"), "localhost:5000/ns/m:t"),
        (
            "localhost:5000/ns/m",
            ("localhost:5000", "ns", "m", "latest"),
            "localhost:5000/ns/m:latest",
        ),
        (
            "https://registry.ollama.ai/library/m:1",
            ("registry.ollama.ai", "library", "m", "1"),
            "m:1",
        ),
        ("m:local", ("registry.ollama.ai", "library", "m", "latest"), "m:latest"),
    ],
)
def test_names_as_ollama_reads_them(text, parts, short):
    name = Name.parse(text)
    assert (name.host, name.namespace, name.model, name.tag) == parts
    assert str(name) == short


@pytest.mark.parametrize(
    "text",
    [
        "",
        "..",
        "../../etc/passwd",
        "a/b/../c",
        "m:",
        ":t",
        "a b",
        "-m",
        "ns.dot/m",
        "m:" + "x" * 90,
        "a/b/c/d",
        "m\n",
        "/etc/passwd",
    ],
)
def test_what_is_no_name(text):
    with pytest.raises(ModelError):
        name = Name.parse(text)
        assert "/" not in name.host  # a/b/c/d has a host with a slash, which is none


def test_a_model_is_found_with_its_other_layers(tmp_path):
    manifest = make_store(
        tmp_path,
        "registry.ollama.ai/library/llama3.1/8b",
        GGUF,
        {"num_ctx": 8192, "stop": ["a"]},
        (
            ("projector", b"GGUFp"),
            ("adapter", b"GGUFa"),
            ("draft", b"GGUFd"),
            ("template", b"{{ .Prompt }}"),
        ),
    )
    stored = find("LLAMA3.1:8B", {"OLLAMA_MODELS": f' "{tmp_path}" '})
    assert stored.manifest == str(manifest)
    assert os.path.realpath(stored.model) == str(GGUF.resolve())
    assert stored.parameters == {"num_ctx": 8192, "stop": ["a"]}
    assert [Path(p).read_bytes() for p in (*stored.projectors, *stored.adapters, stored.draft)] == [
        b"GGUFp",
        b"GGUFa",
        b"GGUFd",
    ]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("hf.co/user/repo:Q4_K_M", "manifests/hf.co/user/repo/Q4_K_M"),
        ("localhost:5000/ns/m:t", "manifests/localhost:5000/ns/m/t"),
        ("m", "manifests/registry.ollama.ai/library/m/latest"),
        ("m", "manifests-v2/ollama.com/library/m/latest"),
    ],
)
def test_manifests_are_found_where_ollama_puts_them(tmp_path, name, place):
    made = make_store(tmp_path, "x/y/z/t", GGUF)
    manifest = tmp_path / place
    manifest.parent.mkdir(parents=True)
    made.rename(manifest)
    assert find(name, {}, [str(tmp_path)]).manifest == str(manifest)


def test_blobs_with_the_old_name_are_found(tmp_path):
    make_store(tmp_path, "registry.ollama.ai/library/m/latest", GGUF)
    for blob in list((tmp_path / "blobs").iterdir()):
        blob.rename(blob.with_name(blob.name.replace("-", ":")))
    assert os.path.realpath(find("m", {}, [str(tmp_path)]).model) == str(GGUF.resolve())


def test_a_store_s_places_are_those_of_its_system():
    assert roots({"HOME": "/home/me", "OLLAMA_MODELS": "/big/models"}) == ["/big/models"]
    linux = roots({"HOME": "/home/me"}, "linux")
    assert linux[0] == "/home/me/.ollama/models" and "/usr/share/ollama/.ollama/models" in linux
    assert roots({"HOME": "/Users/me"}, "darwin") == ["/Users/me/.ollama/models"]
    assert roots({"USERPROFILE": r"C:\Users\me"}, "win32") == [
        os.path.join(r"C:\Users\me", ".ollama", "models")
    ]


def test_the_first_store_that_has_it(tmp_path):
    (tmp_path / "mine/manifests").mkdir(parents=True)
    make_store(tmp_path / "service", "registry.ollama.ai/library/m/latest", GGUF)
    assert find("m", {}, [str(tmp_path / "mine"), str(tmp_path / "service")]).manifest.startswith(
        str(tmp_path / "service")
    )


def broken(tmp_path: Path, change) -> str:
    manifest = make_store(tmp_path, "registry.ollama.ai/library/m/latest", GGUF)
    change(tmp_path, manifest)
    with pytest.raises(ModelError) as error:
        find("m", {}, [str(tmp_path)])
    assert "\n" not in str(error.value)
    return str(error.value)


def blob_of(root: Path, manifest: Path) -> Path:
    return (
        root / "blobs" / json.loads(manifest.read_text())["layers"][0]["digest"].replace(":", "-")
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda root, manifest: manifest.write_text("{"), "not valid JSON"),
        (lambda root, manifest: manifest.write_text("[]"), "not a manifest"),
        (lambda root, manifest: manifest.write_text("[" * 100_000), "not valid JSON"),
        (lambda root, manifest: manifest.write_bytes(b" " * (17 << 20)), "too large"),
        (lambda root, manifest: manifest.write_text('{"layers":[]}'), "names no model layer"),
        (
            lambda root, manifest: manifest.write_text(
                json.dumps(
                    {
                        "layers": [
                            {
                                "mediaType": "application/vnd.ollama.image.model",
                                "digest": "sha256:../../../etc/passwd",
                            }
                        ]
                    }
                )
            ),
            "names no model layer",
        ),
        (
            lambda root, manifest: manifest.write_text(
                json.dumps(
                    {
                        "layers": [
                            {
                                "mediaType": "application/vnd.ollama.image.tensor",
                                "digest": f"sha256:{'1' * 64}",
                                "name": "w",
                            }
                        ]
                    }
                )
            ),
            "MLX",
        ),
        (lambda root, manifest: blob_of(root, manifest).unlink(), "missing"),
        (
            lambda root, manifest: blob_of(root, manifest).rename(
                str(blob_of(root, manifest)) + "-partial"
            ),
            "partly downloaded",
        ),
    ],
)
def test_a_broken_store_is_one_clear_line(tmp_path, change, words):
    assert words in broken(tmp_path, change)


def test_a_model_that_is_not_there_says_where_was_looked(tmp_path):
    (tmp_path / "manifests").mkdir()
    with pytest.raises(NotInStore, match=str(tmp_path)):
        find("m", {}, [str(tmp_path)])
    with pytest.raises(ModelError, match="cloud"):
        find("gpt-oss:120b-cloud", {}, [str(tmp_path)])


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_another_user_s_store_is_said_to_be_theirs(tmp_path):
    make_store(tmp_path / "theirs", "registry.ollama.ai/library/m/latest", GGUF)
    (tmp_path / "theirs").chmod(0)
    try:
        with pytest.raises(StoreUnreadable, match="belongs to another user"):
            find("m", {}, [str(tmp_path / "theirs")])
        # and not an empty one
        with pytest.raises(StoreUnreadable, match="belongs to another user"):
            names({}, [str(tmp_path / "theirs")])
    finally:
        (tmp_path / "theirs").chmod(0o755)
