"""A command that llama-server takes would be refused, or planned as another one.

llama-server's words, environment and config files, read and written back.
"""

from __future__ import annotations

import copy
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autolayers.errors import UsageError
from autolayers.flags import kinds
from autolayers.flags.kinds import ON_OFF
from autolayers.flags.params import EXPERTS_REGEX, FFN_REGEX, Params, Scaled
from autolayers.flags.parse import config_files, parse
from autolayers.flags.table import ARGUMENTS, LEGACY, Argument
from autolayers.flags.write import rewritten, to_words

CHOICES = {
    row.field: row.kind.choices for row in ARGUMENTS if row.kind.choices and row.kind is not ON_OFF
}


def params(line: str, **environ: str) -> Params:
    return parse(line.split(), environ).params


# --- the table


def test_every_params_field_can_be_said() -> None:
    assert {row.field for row in ARGUMENTS} - {""} == {f.name for f in fields(Params)}


# two values of each kind that mean something else; a switch is given or negated
DIFFERENT = {
    kinds.CACHE_TYPE: ("f16", "q8_0"),
    kinds.COUNT: ("1", "2"),
    kinds.COUNTS: ("1,2", "2,1"),
    kinds.DEVICES: ("CUDA0", "none"),
    kinds.DOCKER: ("ai/a", "ai/b"),
    kinds.DRAFT_SAMPLING: ("greedy", "probabilistic"),
    kinds.EXPERTS_OF: ("1", "2"),
    kinds.FFN_OF: ("1", "2"),
    kinds.FILES: ("a", "a,b"),
    kinds.FLASH: ("on", "auto"),
    kinds.INT: ("1", "-1"),
    kinds.INVERSE: ("0.5", "0.25"),
    kinds.KV_OVERRIDES: ("a=int:1", "a=int:2"),
    kinds.LAYERS: ("auto", "all"),
    kinds.LAZY_MODE: ("on", "auto"),
    kinds.LOAD_MODE: ("mmap", "mmap+mlock"),
    kinds.MMPROJ_DEVICE: ("CUDA0", "none"),
    kinds.NAMES: ("a:1", "a:2"),
    kinds.NUMA: ("distribute", "isolate"),
    kinds.OLD_DRAFT: ("1", "2"),
    kinds.ON_OFF: ("on", "off"),
    kinds.OVERRIDES: ("a=CPU", "a=CUDA0"),
    kinds.PATH: ("a", "b"),
    kinds.POOLING: ("mean", "rank"),
    kinds.POSITIVE: ("1", "2"),
    kinds.RATIOS: ("1,2", "1,2.5"),
    kinds.REPOSITORY: ("a/b:Q8_0", "a/b:Q4_0"),
    kinds.ROPE_SCALING: ("none", "yarn"),
    kinds.SCALE: ("2", "2.5"),
    kinds.SCALED: ("a:0.5", "a:0.25"),
    kinds.SLOTS: ("1", "-1"),
    kinds.SPECULATION: ("none", "ngram-mod"),
    kinds.SPLIT_MODE: ("row", "tensor"),
    kinds.TOKENS: ("4096", "8k"),
    kinds.URL: ("http://a", "https://a"),
}


@pytest.mark.parametrize(
    "row", [row for row in (*ARGUMENTS, *LEGACY) if row.field], ids=lambda row: row.canonical
)
def test_what_differs_when_given_differs_when_written(row: Argument) -> None:
    """Of every argument: a writer that drops a part of a value makes another launch of it."""
    name = row.canonical
    if row.takes_value and row.kind is not kinds.FILE_OF:
        lines = [[name, value] for value in DIFFERENT[row.kind]]
    else:
        negated = [[row.negated[0]]] if row.negated else []
        lines = [["-hf", "a/b", name, "c"]] if row.takes_value else [[name]]
        lines += negated or [[]]
    written = [to_words(parse(line).params) for line in lines]
    assert written[0] != written[1]
    for line, words in zip(lines, written, strict=True):
        assert parse(words).params == parse(line).params


def test_scales_of_adapters_are_written_in_their_order() -> None:
    words = ["--lora-scaled", "a:0.5,b:2", "--lora", "c", "--control-vector-scaled", "v:-1"]
    found = parse([*words, "--lora", "d"]).params
    assert to_words(found) == [*words[:3], "c,d", *words[4:]]
    assert found.lora[2:] == ("c", "d") and str(found.lora[0]) == "a"
    assert copy.deepcopy(found) == found != parse(["--lora", "a,b,c,d"]).params


def test_no_name_means_two_arguments() -> None:
    names = [name for row in (*LEGACY, *ARGUMENTS) for name in (*row.names, *row.negated)]
    assert len(names) == len(set(names))
    variables = [row.env for row in ARGUMENTS if row.env]
    assert len(variables) == len(set(variables))


def test_canonical_names_of_memory_flags_are_the_short_ones() -> None:
    first = {row.field: row.canonical for row in reversed(ARGUMENTS) if row.field}
    assert [
        first[name]
        for name in (
            "n_gpu_layers",
            "n_ctx",
            "n_parallel",
            "kv_unified",
            "tensor_split",
            "overrides",
            "n_gpu_layers_draft",
            "cache_type_k_draft",
        )
    ] == ["-ngl", "-c", "-np", "-kvu", "-ts", "-ot", "-ngld", "-ctkd"]


# --- names and values


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("-ngl 33", "n_gpu_layers", 33),
        ("--gpu-layers auto", "n_gpu_layers", -1),
        ("--n-gpu-layers all", "n_gpu_layers", -2),
        ("--n_gpu_layers=7", "n_gpu_layers", 7),
        ("-ngl -7", "n_gpu_layers", -2),
        ("-ngl 1 -ngl 2", "n_gpu_layers", 2),
        ("-fa", "flash_attn", "on"),
        ("-fa --port 80", "flash_attn", "on"),
        ("-fa 0", "flash_attn", "off"),
        ("--flash-attn auto", "flash_attn", "auto"),
        ("-fa enabled", "flash_attn", "on"),
        ("-kvu", "kv_unified", True),
        ("-no-kvu", "kv_unified", False),
        ("--no-kv-unified -kvu", "kv_unified", True),
        ("-nkvo", "kv_offload", False),
        ("--no-op-offload", "op_offload", False),
        ("-nr", "repack", False),
        ("-ts 3,1", "tensor_split", (3.0, 1.0)),
        ("-ts 1/2//3", "tensor_split", (1.0, 2.0, 3.0)),
        ("-dev none", "device", ()),
        ("-dev CUDA0,CUDA1", "device", ("CUDA0", "CUDA1")),
        ("--rpc a:1,b:2 --rpc c:3", "rpc", ("a:1", "b:2", "c:3")),
        ("-fitt 1024", "fit_target", (1024,)),
        ("-fitt 1,2/3", "fit_target", (1, 2, 3)),
        ("-fit off", "fit", False),
        ("-np -1", "n_parallel", -1),
        ("-np -3", "n_parallel", -1),
        ("-mg -1", "main_gpu", -1),
        ("--rope-freq-scale 0.25", "rope_scale", 4.0),
        (
            "--lora-scaled a.gguf:0.5,b.gguf:2",
            "lora",
            (Scaled("a.gguf", 0.5), Scaled("b.gguf", 2)),
        ),
        ('--lora "a,1.gguf",b.gguf --lora c', "lora", ("a,1.gguf", "b.gguf", "c")),
        ("--spec-type draft-mtp --spec-default", "spec_type", ("draft-mtp", "ngram-mod")),
        ("--override-kv a=int:3,b=str:x", "override_kv", (("a", "int:3"), ("b", "str:x"))),
        ("-hf a/b:Q4_0", "model", "hf:a/b:Q4_0"),
        ("-hf a/b:Q4_0 -hff c.gguf", "model", "hf:a/b/c.gguf"),
        ("--no-mmap", "load_mode", "none"),
        ("--mlock", "load_mode", "mmap+mlock"),
        ("--no-mmap --mlock", "load_mode", "mlock"),
        ("-mmdev none", "mmproj_offload", False),
        ("--gpt-oss-20b-default", "n_ubatch", 2048),
        ("-ub 64 --gpt-oss-20b-default", "n_ubatch", 2048),
        ("--gpt-oss-20b-default -ub 64", "n_ubatch", 64),
        ("-c 0", "n_ctx", 0),
        ("--draft-max 5", "draft_n_max", 5),
    ],
)
def test_words_are_read(line: str, field: str, value: object) -> None:
    assert getattr(params(line), field) == value


@pytest.mark.parametrize("words", ["-ts {}", "--tensor-split={}"])
def test_a_split_has_no_more_shares_than_llama_cpp_reads(words: str) -> None:
    assert params(words.format(",".join("1" * 15))).tensor_split == (1.0,) * 15
    with pytest.raises(UsageError, match="at most 15 proportions"):
        params(words.format("/".join("1" * 16)))


def test_overrides_keep_the_order_of_the_command_line() -> None:
    assert params("-ncmoe 2 -ot attn=CUDA1,a=b=c -cmoe -ncffn 1").overrides == (
        (r"blk\.0" + EXPERTS_REGEX, "CPU"),
        (r"blk\.1" + EXPERTS_REGEX, "CPU"),
        ("attn", "CUDA1"),
        ("a", "b=c"),
        (EXPERTS_REGEX, "CPU"),
        (r"blk\.0" + FFN_REGEX, "CPU"),
    )
    assert (
        EXPERTS_REGEX == r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
        and FFN_REGEX == r"\.ffn_(up|down|gate)\."
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-ngl many", "-ngl 'many': expected a number of layers, auto or all"),
        ("-c -1", "-c '-1': expected a whole number, 0 or more"),
        ("-c 8x", "-c '8x': expected a whole number, 0 or more"),
        (
            "-ctxcp 4000000000",
            "-ctxcp '4000000000': expected a whole number, -2147483648 to 2147483647",
        ),
        ("-c 8_192", "-c '8_192': expected a whole number, 0 or more"),
        ("-ts 1_0,2", "-ts '1_0,2': expected a number"),
        (
            "-c 4096M",
            "-c '4096M': expected a number of tokens such as 8192 or 16k, 0 to 2147483647",
        ),
        ("-c 99999999999", "-c '99999999999': expected a whole number, 0 to 4294967295"),
        ("-np 0", "-np '0': expected a number of slots, or -1 for auto"),
        (
            "-ctk Q8_0",
            "-ctk 'Q8_0': expected one of f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1, "
            "f8_e4m3",
        ),
        ("-sm rows", "-sm 'rows': expected one of none, layer, row, tensor"),
        (
            "-fa maybe",
            "-fa 'maybe': expected one of on, enabled, true, 1, off, disabled, false, 0, auto, -1",
        ),
        ("-ts 3,x", "-ts '3,x': expected a number"),
        ("-ts nan", "-ts 'nan': expected a number"),
        ("-ot foo", "-ot 'foo': expected <tensor name pattern>=<buffer type>,..."),
        ("-ncmoe -1", "-ncmoe '-1': expected a whole number, 0 or more"),
        (
            "--spec-type magic",
            "--spec-type 'magic': expected one of none, draft-simple, draft-eagle3, "
            "draft-mtp, "
            "draft-dflash, draft-dspark, ngram-simple, ngram-map-k, ngram-map-k4v, "
            "ngram-mod, "
            "ngram-cache",
        ),
        ("-kvu=1", None),
        ("--kv-unified=1", "--kv-unified takes no value, got '1'"),
        ("-c", "-c needs a value"),
        (
            "--override-kv a=b",
            "--override-kv 'a=b': expected KEY=TYPE:VALUE,... with a TYPE of int, float, bool, str",
        ),
        ("--strategy best", "--strategy 'best': expected one of layers, auto"),
        ("--json=1", "--json takes no value, got '1'"),
        ("--rope-scale 0", "--rope-scale '0': expected a number above 0"),
        ("--rpc a,,b", "--rpc 'a,,b': expected names separated by commas"),
    ],
)
def test_nonsense_names_the_flag_and_what_it_allows(line: str, message: str | None) -> None:
    if message is None:
        assert parse(line.split()).rest == (line,)
        return
    with pytest.raises(UsageError) as error:
        parse(line.split())
    assert str(error.value) == message


# --- what is not memory


def test_the_rest_passes_unchanged_and_in_order() -> None:
    words = (
        "--port 80 -c 64 --api_key=k --jinja --poll 4 --control-vector-layer-range 1 2 "
        "--new-thing 7 --other "
        "-ngl 3 --neg -1 -v"
    )
    arguments = parse(words.split())
    assert " ".join(arguments.rest) == words.replace(" -c 64", "").replace(" -ngl 3", "").replace(
        "_key=", "-key "
    )
    assert arguments.unknown == ("--new-thing", "--other", "--neg")
    assert arguments.params == Params(n_ctx=64, n_gpu_layers=3)
    assert (
        arguments.value("--port") == "80"
        and arguments.value("--control-vector-layer-range") == "1 2"
    )
    assert arguments.value("-b") is None


def test_own_flags_and_the_model_are_told_apart() -> None:
    arguments = parse(
        [
            "model.gguf",
            "--gpu",
            "24G",
            "--gpu=12G",
            "--json",
            "--strategy",
            "layers",
            "--budget",
            "CUDA0=1G",
            "--budget",
            "CUDA1=2G",
            "--ctx_min",
            "16k",
        ]
    )
    assert arguments.positional == ("model.gguf",)
    assert arguments.own == {
        "gpu": "24G,12G",
        "format": "json",
        "strategy": "layers",
        "ctx-min": 16384,
        "budget": (("CUDA0", 1 << 30), ("CUDA1", 2 << 30)),
    }
    assert parse(["--dry_run", "--retry", "2"], command="run").own == {"dry-run": True, "retry": 2}
    assert parse(["--gpu", "24G", "-q"], command=None).rest == ("--gpu", "24G", "-q")


def test_given_is_canonical_and_in_order() -> None:
    arguments = parse(
        ["--n-gpu-layers", "3", "--no-kv-offload", "--ctx_size", "8"], {"LLAMA_ARG_BATCH": "7"}
    )
    assert arguments.given == (("-b", "7"), ("-ngl", "3"), ("-nkvo", ""), ("-c", "8"))


# --- environment


def test_environment_comes_before_the_words() -> None:
    assert params("-c 2", LLAMA_ARG_CTX_SIZE="1", LLAMA_ARG_N_GPU_LAYERS="all") == Params(
        n_ctx=2, n_gpu_layers=-2
    )


@pytest.mark.parametrize(
    ("environ", "field", "value"),
    [
        ({"LLAMA_ARG_KV_OFFLOAD": "off"}, "kv_offload", False),
        ({"LLAMA_ARG_KV_OFFLOAD": "1"}, "kv_offload", True),
        ({"LLAMA_ARG_NO_KV_OFFLOAD": "0"}, "kv_offload", False),  # only its presence counts
        ({"LLAMA_ARG_NO_KV_OFFLOAD": "", "LLAMA_ARG_KV_OFFLOAD": "1"}, "kv_offload", False),
        ({"LLAMA_ARG_SWA_FULL": "true"}, "swa_full", True),
        ({"LLAMA_ARG_SWA_FULL": "yes"}, "swa_full", None),
        ({"LLAMA_ARG_SWA_FULL": "0"}, "swa_full", None),
        ({"MTMD_BACKEND_DEVICE": "CUDA1"}, "mmproj_device", "CUDA1"),
    ],
)
def test_variables_of_switches_are_read_as_llama_cpp_does(
    environ: dict[str, str], field: str, value: object
) -> None:
    assert getattr(parse([], environ).params, field) == value


def test_overrides_of_the_environment_stand_first_in_llama_cpps_order() -> None:
    found = params(
        "-ot z=CPU",
        LLAMA_ARG_N_CPU_MOE="1",
        LLAMA_ARG_OVERRIDE_TENSOR="a=CPU",
        LLAMA_ARG_CPU_MOE="1",
    )
    assert [pattern for pattern, _ in found.overrides] == [
        "a",
        EXPERTS_REGEX,
        r"blk\.0" + EXPERTS_REGEX,
        "z",
    ]


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"LLAMA_ARG_CTX_SIZE": "junk"},
            "LLAMA_ARG_CTX_SIZE 'junk': expected a whole number, 0 or more",
        ),
        (
            {"LLAMA_ARG_KV_UNIFIED": "maybe"},
            "LLAMA_ARG_KV_UNIFIED='maybe': expected one of on, enabled, true, 1, off, disabled, "
            "false, 0",
        ),
    ],
)
def test_nonsense_in_the_environment_is_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse([], environ)
    assert str(error.value) == message


# --- config files


def test_a_service_without_home_has_the_config_of_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / ".config" / "llama.cpp" / "config.ini"
    config.parent.mkdir(parents=True)
    config.write_text("ngl = 5")
    # "~" is the user database's home where HOME is unset
    monkeypatch.setattr("os.path.expanduser", lambda path: path.replace("~", str(tmp_path)))
    assert config_files({"PATH": "/bin"}) == config_files({"HOME": str(tmp_path)}) == (str(config),)


def test_config_files_are_read_in_order(tmp_path) -> None:  # type: ignore[no-untyped-def]
    config = tmp_path / "llama.cpp" / "config.ini"
    config.parent.mkdir()
    config.write_text(
        "ctx-size = 1024 ; a comment\nngl=5#five\nLLAMA_ARG_BATCH = 64\nmade-up = "
        "3\nversion = 1\n"
        "no-kv-offload = true\nkv-unified = 0\nswa-full = false\n"
        "[ * ]\nub = 32\nb = 16\n[other]\nctx-size = 9\n\n# end\r\n"
    )
    files = config_files({"XDG_CONFIG_HOME": str(tmp_path)})
    assert files == (str(config),)
    # swa-full has no negation: llama.cpp calls its handler whatever the value is
    assert parse([], config_files=files).params == Params(
        n_ctx=1024,
        n_gpu_layers=5,
        n_batch=64,
        n_ubatch=32,
        kv_offload=False,
        kv_unified=False,
        swa_full=True,
    )
    assert parse(["-ngl", "1"], {"LLAMA_ARG_CTX_SIZE": "7"}, files).params.n_ctx == 7


def test_a_config_file_that_llama_cpp_refuses(tmp_path) -> None:  # type: ignore[no-untyped-def]
    config = tmp_path / "config.ini"
    config.write_text("ctx-size = 1\n  ngl = 2\n")
    with pytest.raises(
        UsageError,
        match=r"config.ini, line 2: llama.cpp cannot read 'ngl = 2', "
        r"write key = value",
    ):
        parse([], config_files=[str(config)])
    config.write_bytes(b"\xff\xfe\x00\x01 garbage \x00")
    with pytest.raises(UsageError, match=r"line 1"):
        parse([], config_files=[str(config)])
    with pytest.raises(UsageError, match=r"No such file"):
        parse([], config_files=[str(tmp_path / "none.ini")])


# --- and back

_name = st.text("abcXYZ019_.", min_size=1, max_size=8)
_path = st.text("abc/,\"' .=-é", min_size=1, max_size=12).filter(
    lambda text: text.strip('"') == text
)
_pattern = st.text(r"abk.\d+()|_", min_size=1, max_size=10)
_override = st.one_of(
    st.tuples(_pattern, st.sampled_from(["CPU", "CUDA0", "RPC0[localhost:50052]"])),
    st.just((EXPERTS_REGEX, "CPU")),
    st.integers(0, 3).map(lambda i: (rf"blk\.{i}{EXPERTS_REGEX}", "CPU")),
    st.integers(0, 3).map(lambda i: (rf"blk\.{i}{FFN_REGEX}", "CPU")),
)
_overrides = st.lists(_override, max_size=6).map(tuple)
_float = st.floats(1e-6, 1e6, allow_nan=False)
_count = st.integers(0, 10**6)


def _choice(field: str) -> st.SearchStrategy[str]:
    return st.sampled_from(CHOICES[field])


_BY_FIELD: dict[str, st.SearchStrategy[object]] = {
    "n_gpu_layers": st.integers(-2, 999),
    "n_gpu_layers_draft": st.integers(-2, 999),
    "n_batch": st.integers(1, 10**6),
    "n_parallel": st.integers(1, 64) | st.just(-1),
    "flash_attn": st.sampled_from(["on", "off", "auto"]),
    "tensor_split": st.lists(_float, min_size=1, max_size=4).map(tuple),
    "device": st.lists(_name, max_size=3).map(tuple),
    "device_draft": st.lists(_name, max_size=3).map(tuple),
    "rpc": st.lists(st.just("h:1") | _name, max_size=3).map(tuple),
    "overrides": _overrides,
    "overrides_draft": _overrides.map(
        lambda pairs: tuple(pair for pair in pairs if FFN_REGEX not in pair[0])
    ),
    "fit_target": st.lists(_count, min_size=1, max_size=3).map(tuple),
    "lora": st.lists(_path, max_size=3).map(tuple),
    "control_vector": st.lists(_path, max_size=3).map(tuple),
    "spec_type": st.lists(
        _choice("spec_type").filter(lambda t: t != "none"), max_size=3, unique=True
    ).map(tuple),
    "override_kv": st.lists(
        st.tuples(_name, st.sampled_from(["int:1", "str:a,b", "bool:true"])), max_size=3
    ).map(tuple),
    "rope_scale": _float,
    "ctx_checkpoints": st.integers(-1, 99),
    "cache_ram": st.integers(-1, 10**5),
    "model": _path,
    "model_draft": _path,
    "mmproj": _path,
}
# llama.cpp has no word for False
_TRUE_ONLY = {"swa_full", "no_host", "embedding", "reranking", "backend_sampling"}


def _field(name: str, annotation: str) -> st.SearchStrategy[object]:
    if name in _BY_FIELD:
        known = _BY_FIELD[name]
    elif name in CHOICES:
        known = _choice(name)
    elif annotation.startswith("bool"):
        known = st.just(True) if name in _TRUE_ONLY else st.booleans()
    elif annotation.startswith("str"):
        known = _name
    else:
        known = _count
    return (
        known if annotation.startswith("tuple") and "None" not in annotation else st.none() | known
    )


_fields = {name: _field(name, annotation) for name, annotation in Params.__annotations__.items()}
_params = st.builds(Params, **_fields).filter(
    lambda p: (
        (p.mmproj_device is None or p.mmproj_offload is True)
        and p.mmproj_device != "none"
        and p.device != ("none",)
        and p.device_draft != ("none",)
    )
)


@pytest.mark.slow
@given(_params)
def test_what_is_written_is_read_back(wanted: Params) -> None:
    assert parse(to_words(wanted)).params == wanted


@pytest.mark.slow
@given(_params, _params)
def test_words_are_rewritten(before: Params, after: Params) -> None:
    assert parse(rewritten(to_words(before), before, after)).params == after
    assert rewritten(to_words(before), before, before) == tuple(to_words(before))


def test_written_words_are_the_ones_people_use() -> None:
    words = "-c 8192 -no-kvu -np 2 -ctk q8_0 -ncmoe 4 -ot attn=CUDA1 -ngl 33 -sm row -ts 3,1"
    assert " ".join(to_words(params(words))) == words.replace("-np 2 -ctk q8_0", "-ctk q8_0 -np 2")
    assert to_words(params("-hf a/b:Q4_0 -fa")) == ["-fa", "on", "-hf", "a/b:Q4_0"]
    assert to_words(Params()) == []


@pytest.mark.parametrize("mode", ["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"])
def test_builds_without_load_mode_are_told_by_their_own_switches(mode: str) -> None:
    words = to_words(Params(load_mode=mode), lambda flag: flag != "-lm")
    assert "-lm" not in words and (parse(words).params.load_mode or "auto") == mode


def test_what_no_command_line_can_say() -> None:
    with pytest.raises(ValueError, match="-ot cannot express a,b=CPU"):
        to_words(Params(overrides=(("a,b", "CPU"),)))


@given(
    st.lists(
        st.text(max_size=6) | st.sampled_from([name for row in ARGUMENTS for name in row.names]),
        max_size=8,
    )
)
def test_any_words_are_read_or_refused(words: list[str]) -> None:
    try:
        arguments = parse(words)
    except UsageError as error:
        assert "\n" not in str(error) or any("\n" in word for word in words)
    else:
        assert all(word in words for word in arguments.rest)
