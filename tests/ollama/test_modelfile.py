"""A rewritten Modelfile would lose a line of its owner's.

The Modelfile: read as Ollama's own parser reads it, rewritten without touching anything else.
"""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import ROOT

from autolayers.ollama.modelfile import ModelfileError, parse, rewrite

CASES = json.loads((ROOT / "fixtures/truth/modelfile_cases.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_what_ollamas_own_parser_makes_of_it(case):
    data = base64.b64decode(case["modelfile_b64"])
    if "error" in case:
        with pytest.raises(ModelfileError) as error:
            parse(data)
        assert error.value.ollama == case["error"]
        with pytest.raises(ModelfileError):
            rewrite(data, {"num_gpu": 33})
        return
    modelfile = parse(data)
    assert [[command.name, command.args] for command in modelfile.commands] == case["commands"]
    if "create_error" in case:
        with pytest.raises(ModelfileError) as error:
            modelfile.parameters()
        assert error.value.ollama == case["create_error"]
    elif "parameters" in case:
        assert modelfile.parameters() == case["parameters"]


@pytest.mark.parametrize(
    "case", [c for c in CASES if "parameters" in c], ids=lambda case: case["name"]
)
def test_rewriting_the_cases_changes_only_the_parameters(case):
    data = base64.b64decode(case["modelfile_b64"])
    after = parse(rewrite(data, {"num_gpu": 33, "num_ctx": 8192}))
    assert after.parameters() == {**case["parameters"], "num_gpu": 33, "num_ctx": 8192}
    untouched = [list(c) for c in case["commands"] if c[0] not in ("num_gpu", "num_ctx")]
    assert [
        [c.name, c.args] for c in after.commands if c.name not in ("num_gpu", "num_ctx")
    ] == untouched
    assert rewrite(after.data, {"num_gpu": 33, "num_ctx": 8192}) == after.data


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"FROM m\n", b"FROM m\nPARAMETER num_gpu 33\n"),
        (b"FROM m", b"FROM m\nPARAMETER num_gpu 33"),
        (b"FROM m \t", b"FROM m \t\nPARAMETER num_gpu 33"),
        (b"FROM m\r\nSYSTEM hi", b"FROM m\r\nPARAMETER num_gpu 33\r\nSYSTEM hi"),
        (b"FROM m\rSYSTEM hi\r", b"FROM m\rPARAMETER num_gpu 33\rSYSTEM hi\r"),
        (b"# top\r\nFROM m", b"# top\r\nFROM m\r\nPARAMETER num_gpu 33"),
        (b"# top\r\nSYSTEM hi\r\nFROM m", b"# top\r\nSYSTEM hi\r\nFROM m\r\nPARAMETER num_gpu 33"),
        (
            b"FROM a.gguf\nFROM mmproj.gguf\n",
            b"FROM a.gguf\nFROM mmproj.gguf\nPARAMETER num_gpu 33\n",
        ),
        (b'FROM "my\nmodel"\nSYSTEM x', b'FROM "my\nmodel"\nPARAMETER num_gpu 33\nSYSTEM x'),
        (
            b"FROM m\nPARAMETER\tnum_gpu \t 7 \t\n# end",
            b"FROM m\nPARAMETER\tnum_gpu \t 33 \t\n# end",
        ),
        (
            b'FROM m\nparameter num_gpu """7"""\nPARAMETER num_gpu "8"',
            b"FROM m\nparameter num_gpu 33\nPARAMETER num_gpu 33",
        ),
        (
            b"FROM m\nPARAMETER num_gpu \xc2\xa07\xe2\x80\x8b\n",
            b"FROM m\nPARAMETER num_gpu \xc2\xa033\xe2\x80\x8b\n",
        ),
        (
            b'FROM m\nSYSTEM """\nPARAMETER num_gpu 9\n"""\n',
            b'FROM m\nPARAMETER num_gpu 33\nSYSTEM """\nPARAMETER num_gpu 9\n"""\n',
        ),
        # nothing between two quotes: the value is over
        (b'FROM m\nSYSTEM ""\nPARAMETER num_gpu 9', b'FROM m\nSYSTEM ""\nPARAMETER num_gpu 33'),
        (
            b"PARAMETER model m\nPARAMETER system hi\n",
            b"PARAMETER model m\nPARAMETER num_gpu 33\nPARAMETER system hi\n",
        ),
        (b"FROM m\nSYSTEM a\xffb\xc3\n", b"FROM m\nPARAMETER num_gpu 33\nSYSTEM a\xffb\xc3\n"),
    ],
)
def test_every_other_byte_stays(before, after):
    assert rewrite(before, {"num_gpu": 33}) == after


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16-le", "utf-16-be"])
def test_the_encoding_stays(encoding):
    mark = {"utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}.get(encoding, b"")
    text = '# größe 👩‍💻\r\nFROM m\r\nSYSTEM """hé\r\nllo"""\r\nPARAMETER num_ctx 4096 \r\n'
    wanted = text.replace("4096", "8192").replace(
        "FROM m\r\n", "FROM m\r\nPARAMETER num_gpu 33\r\n"
    )
    assert rewrite(
        mark + text.encode(encoding), {"num_gpu": 33, "num_ctx": 8192}
    ) == mark + wanted.encode(encoding)


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (b"FROM m\r\nSYSTEM x\r\nPARAMETER num_gpu 3 # all\r\n", 3, "invalid int value [3 # all]"),
        (b"FROM m\nPARAMETER  num_gpu 3\n", 2, "unknown parameter ''"),
        (b"FROM m\nPARAMETER numa true\n", 2, "unknown parameter 'numa'"),
        (b"FROM m\nPARAMETER use_mmap yes\n", 2, "invalid bool value [yes]"),
        (b"FROM m\nPARAMETER temperature 1__0\n", 2, "invalid float value [1__0]"),
        (b"FROM m\nPARAMETER temperature 1_.5\n", 2, "invalid float value [1_.5]"),
        (b"FROM m\nPARAMETER top_p -Inf\n", 2, "json: unsupported value: -Inf"),
        (b"FROM m\nPARAMETER top_p nan\n", 2, "json: unsupported value: nan"),
        ('FROM m\nSYSTEM \U0001fbff"x\n'.encode(), 2, "U+1FBFF next to a quote"),
        ('FROM m\nSYSTEM "x"\U0001fbff\n'.encode(), 2, "U+1FBFF next to a quote"),
        ('FROM m\nSYSTEM \U0001fbff \U0001fbfe"x\n'.encode(), 2, "next to a quote"),
        (b"FROM m\nPARAMETER temperature 1e39\n", 2, "invalid float value [1e39]"),
        (b"FROM m\nPARAMETER num_gpu 9223372036854775808\n", 2, "invalid int value"),
        (b"FROM m\nPARAMETER num_gpu \xd9\xa3\n", 2, "invalid int value"),
        (b"FROM m\nREQUIRES 0.01.0\n", 2, "requires must be a valid semver"),
        (b"FROM m\nMESSAGE User hi\n", 2, "message role must be one of"),
        (b"FROM m\nMESSAGE user\n", 2, "unexpected EOF: user"),
        (b"", 1, "no FROM line"),
        (b"# only\n", 1, "no FROM line"),
        (b'FROM m\nSYSTEM """""\n', 2, "unexpected EOF"),
    ],
)
def test_what_ollama_refuses_is_refused_with_line_and_reason(data, line, words):
    with pytest.raises(ModelfileError, match="refuses") as error:
        rewrite(data, {"num_gpu": 33}, source="some/Modelfile")
    assert words in str(error.value)
    assert str(error.value).startswith(f"some/Modelfile:{line}: ")
    assert "\n" not in str(error.value)


def test_emoji_that_are_newer_than_python_are_kept_as_go_keeps_them():
    assert parse("FROM new\U0001fae8.gguf\n".encode()).model == "new\U0001fae8.gguf"


def test_characters_that_python_does_not_know_matter_at_quotes_alone():
    data = "FROM m\nSYSTEM a \U0001fbff b\n".encode()
    assert rewrite(data, {"num_gpu": 3}) == data.replace(b"SYSTEM", b"PARAMETER num_gpu 3\nSYSTEM")


@pytest.mark.parametrize(
    ("text", "value"), [("1_000", 1000.0), ("1_0.5", 10.5), ("1e1_0", 1e10), (".5_0", 0.5)]
)
def test_floats_are_gos_literals(text, value):
    assert parse(f"FROM m\nPARAMETER temperature {text}\n".encode()).parameters() == {
        "temperature": value
    }


def test_a_draft_that_is_the_model_is_refused():
    with pytest.raises(ModelfileError, match="the model itself"):
        rewrite(b"FROM m\nDRAFT m\n", {"num_gpu": 3})


def test_dropped_parameters_do_no_harm():
    data = (
        b"FROM m\nPARAMETER mirostat 2\nPARAMETER f16_kv nonsense\nPARAMETER temperature "
        b"0x1p-2\nPARAMETER use_mmap F\n"
    )
    assert parse(data).parameters() == {"temperature": 0.25, "use_mmap": False}


@pytest.mark.slow
def test_a_huge_file_is_refused_and_a_long_one_is_read_in_linear_time():
    with pytest.raises(ModelfileError, match="too much for a Modelfile"):
        parse(b"x" * (17 << 20))
    many = (
        b'FROM m\nSYSTEM """\n'
        + b'a line that ends in "\n' * 100_000
        + b'"""\n'
        + b"PARAMETER stop x\n" * 20_000
    )
    assert len(parse(many).commands) == 20_002


def machine(data: bytes) -> list[tuple[str, str]] | str:
    """The grammar a second time, rune by rune as its description reads, to check the fast reader
    against."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = data.decode("utf-16", "replace")
    else:
        text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    state, buffer, role, name, found, line = "nil", "", "", "", [], 1
    names = [
        "from",
        "license",
        "template",
        "system",
        "adapter",
        "draft",
        "renderer",
        "parser",
        "parameter",
        "message",
        "requires",
    ]

    def unquote(s: str) -> str | None:
        for quote in ('"""', '"'):
            if s.startswith(quote):
                return (
                    s[len(quote) : -len(quote)]
                    if len(s) >= 2 * len(quote) and s.endswith(quote)
                    else None
                )
        return s

    for rune in text:
        line += rune in "\r\n"
        letter = rune.isascii() and rune.isalpha()
        if state == "nil":
            if rune == "#":
                state = "comment"
            elif rune not in " \t\r\n":
                state, buffer = "name", rune if rune.isprintable() else ""
        elif state == "comment":
            state = "nil" if rune in "\r\n" else state
        elif state == "name" and letter:
            buffer += rune
        elif state == "name":
            if rune not in " \t" or buffer.lower() not in names:
                return f"(line {line}): command"
            name = {"from": "model"}.get(buffer.lower(), buffer.lower())
            state, buffer = {"parameter": "parameter", "message": "role"}.get(name, "value"), ""
        elif state in ("parameter", "role"):
            if letter or (state == "parameter" and (rune == "_" or rune in "0123456789")):
                buffer += rune
            elif rune not in " \t":
                return f"unexpected EOF: {buffer}"
            elif state == "role" and buffer not in ("system", "user", "assistant"):
                return f"(line {line}): message"
            else:
                name, role = (buffer, role) if state == "parameter" else (name, f"{buffer}: ")
                state, buffer = "value", ""
        elif rune in "\r\n" and unquote(buffer.strip(" \t\r\n")) is not None:
            found.append((name, role + unquote(buffer.strip(" \t\r\n"))))
            state, role, buffer = "nil", "", ""
        elif rune in " \t\r\n" or rune.isprintable():
            buffer += rune
    if state == "value" and unquote(buffer.strip(" \t\r\n")) is not None:
        found.append((name, role + unquote(buffer.strip(" \t\r\n"))))
    elif state not in ("nil", "comment"):
        return "unexpected EOF"
    return found if any(name == "model" for name, _ in found) else "no FROM line"


PIECES = st.sampled_from(
    [
        "FROM m",
        "from ./a.gguf",
        "FROM ",
        "SYSTEM",
        "SYSTEM ",
        "TEMPLATE ",
        "LICENSE ",
        "PARAMETER ",
        "parameter\t",
        "PARAMETER  ",
        "MESSAGE ",
        "MESSAGE user ",
        "user",
        "num_gpu ",
        "num_ctx\t",
        "num_batch ",
        "stop ",
        "temperature ",
        "PARAMETER num_gpu ",
        "PARAMETER num_ctx 4096",
        "PARAMETER stop ",
        "PARAMETER system ",
        "7",
        "-1",
        "+3",
        "0.5",
        '"',
        '"""',
        '""',
        "#",
        "# note",
        "\n",
        "\n",
        "\n",
        "\r\n",
        "\r",
        " ",
        "\t",
        "\u00a0",
        "\u200b",
        "\ufeff",
        "\x00",
        "\x0c",
        "é",
        "👩‍💻",
        "\ufffd",
        "x",
        "_",
    ]
)
RAW = st.binary(max_size=3) | st.sampled_from([b"\xff", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f"])
UTF8 = st.lists(PIECES.map(str.encode) | RAW, max_size=30).map(b"".join)
UTF16 = st.tuples(
    st.sampled_from([("utf-16-le", b"\xff\xfe"), ("utf-16-be", b"\xfe\xff")]),
    st.lists(PIECES, max_size=30),
).map(lambda made: made[0][1] + "".join(made[1]).encode(made[0][0]))
ANYTHING = UTF8 | UTF8.map(b"\xef\xbb\xbf".__add__) | UTF8.map(b"FROM m\n".__add__) | UTF16


@settings(max_examples=600, deadline=None)
@given(ANYTHING)
@example(b"\xe2\x82\x8f\xd7\x88")  # two that no version knows, side by side
def test_random_bytes_are_read_as_the_grammar_says(data):
    expected = machine(data)
    try:
        assert [(command.name, command.args) for command in parse(data).commands] == expected
    except ModelfileError as error:
        if "Ollama's version decides" not in error.ollama:  # what is not sure is refused
            assert isinstance(expected, str) and error.ollama.startswith(expected)


VALUES = st.dictionaries(
    st.sampled_from(["num_gpu", "num_ctx", "num_batch"]), st.integers(-1, 2**20), min_size=1
)
STATEMENT = st.one_of(
    st.sampled_from(
        [
            "FROM m",
            "from x:y ",
            "PARAMETER model z",
            "# comment PARAMETER num_gpu 1",
            "",
            "  ",
            "PARAMETER seed 1",
            'PARAMETER stop "a b"',
            'SYSTEM """',
            'SYSTEM "',
            '"""',
            '"',
            'MESSAGE user "hi',
            "TEMPLATE {{ .Prompt }}",
            "PARAMETER num_gpu 5",
            '\tparameter\tnum_ctx\t"4096" ',
            'Parameter num_batch """1"""',
            "PARAMETER num_gpu\t+3",
            "LICENSE x\u00a0y\u200b",
            "PARAMETER mirostat 1",
        ]
    ),
    st.text(max_size=8).map(lambda text: f'SYSTEM """{text}"""'),
)
MODELFILE = st.tuples(
    st.lists(STATEMENT, max_size=12),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.sampled_from(
        [
            ("utf-8", b""),
            ("utf-8", b"\xef\xbb\xbf"),
            ("utf-16-le", b"\xff\xfe"),
            ("utf-16-be", b"\xfe\xff"),
        ]
    ),
)


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(MODELFILE, VALUES)
def test_a_rewritten_modelfile_differs_in_the_intended_values_alone(made, values):
    lines, newline, final, (encoding, mark) = made
    data = mark + (newline.join(["FROM m", *lines]) + newline * final).encode(encoding, "ignore")
    try:
        before = parse(data)
        old = before.parameters()
    except ModelfileError:
        with pytest.raises(ModelfileError):
            rewrite(data, values)
        return
    written = rewrite(data, values)
    after = parse(written)
    assert repr(sorted(after.parameters().items())) == repr(sorted({**old, **values}.items()))
    assert [(c.name, c.args) for c in after.commands if c.name not in values] == [
        (c.name, c.args) for c in before.commands if c.name not in values
    ]
    # Take out of both files what the rewrite was allowed to change: the rest is equal byte for
    # byte.
    inserted = {name for name in values if not before.named(name)}

    def rest(modelfile):
        left, data = [], modelfile.data
        at = 0
        for command in modelfile.commands:
            if command.name in inserted:
                left.append(data[at : command.start])
                at = command.end
            elif command.name in values:
                left.append(data[at : command.value[0]])
                at = command.value[1]
        return b"".join(left) + data[at:]

    # Behind a FROM that ends the file without a newline, the new lines need one newline to begin
    # with.
    unterminated = inserted and not before.named("model")[-1].newline
    added = (
        (newline if newline.encode(encoding) in data else "\n").encode(encoding)
        if unterminated
        else b""
    )
    assert rest(after) == rest(before) + added
