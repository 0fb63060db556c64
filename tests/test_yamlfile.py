"""Strict YAML with places."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner import yamlfile
from tuner.errors import FileError, InputError, UnitError
from tuner.yamlfile import loads


def value(text):
    """The node of the key `a` of a file with this one line."""
    return loads(f"a: {text}\n", "f.yaml").items()[0][1]


def test_every_value_knows_its_place():
    """Line and column count from 1, of the value and of its key; the path names elements by number."""
    root = loads("slo:\n  ttft:\n    p99: 2s\nlist: [a, {b: 3}]\n", "f.yaml")
    slo, items = (node for _, node in root.items())
    p99 = slo.items()[0][1].items()[0][1]
    assert (str(p99.where), str(p99.key_where), p99.key) == ("f.yaml:3:10", "f.yaml:3:5", "slo.ttft.p99")
    b = items.elements()[1].items()[0][1]
    assert (str(b.where), b.key, b.integer()) == ("f.yaml:4:15", "list[1].b", 3)


def test_an_unknown_key_is_an_error_with_the_nearest_known_one():
    """The message stands at the key and names what is known."""
    with pytest.raises(FileError) as caught:
        loads("tfft: 1\n", "f.yaml").mapping(["ttft", "itl"])
    assert str(caught.value) == "f.yaml:1:1: tfft: unknown key 'tfft'; did you mean 'ttft'?; known here: ttft, itl"


def test_a_missing_key_is_an_error_at_its_block():
    """The block says which key it lacks."""
    with pytest.raises(FileError, match=r"f\.yaml:1:4: a: the key 'x' is missing"):
        value("{y: 1}").mapping(["x", "y"], required=["x"])


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1.5e0", 1.5),
        ("1e-3", 0.001),
        ("1e1", 10),
        ("1e+3", 1000),
        ("1.e3", 1000),
        (".5", 0.5),
        ("1_000", 1000),
        ("-2", -2),
        ("0x1F", 31),
        ("1.0e-3", 0.001),
        ("+7", 7),
        ("0", 0),
        ("0.0", 0),
        ("007.5", 7.5),
    ],
)
def test_numbers_take_every_usual_spelling(text, number):
    """Exponents without dot or sign are numbers too, as people expect (YAML 1.1 reads them as text)."""
    assert value(text).number() == number


@pytest.mark.parametrize(
    "text", ["010", "08", "20:30", ".inf", "-.inf", ".nan", "NaN", "1e999", '"3"', "x", "3 GB", "[]", "~"]
)
def test_what_is_no_number_is_refused(text):
    """Octals, base 60, infinities, quoted and other texts are errors with file, key and value."""
    with pytest.raises(FileError, match=r"^f.yaml:1:4: a: got "):
        value(text).number()


@pytest.mark.parametrize("text", ["1.5", "1e-3", "true", "1e400", "9" * 5000])
def test_what_is_no_whole_number_is_refused(text):
    """Fractions and numbers of thousands of digits are no counts."""
    with pytest.raises(FileError):
        value(text).integer()
    assert value("1e3").integer() == 1000


def test_bounds_say_whether_they_are_inclusive():
    """`minimum` and `maximum` are inclusive, `above` is not."""
    assert value("1").integer(minimum=1, maximum=1) == 1
    with pytest.raises(FileError, match="must be above 0"):
        value("0").number(above=0)
    with pytest.raises(FileError, match="must be at least 1"):
        value("0").integer(minimum=1)
    with pytest.raises(FileError, match="must be at most 2"):
        value("3").number(maximum=2)


@pytest.mark.parametrize(
    "text", ["no", "off", "On", "y", "true", "7", "1e3", "010", "20:30", "12:30:45", "2024-01-01", ".nan"]
)
def test_text_that_yaml_takes_for_something_else_must_be_quoted(text):
    """A bare word that some YAML reads as boolean, number or date is refused with the quoted form as remedy."""
    with pytest.raises(FileError, match="quote it"):
        value(text).text()
    assert value(f'"{text}"').text() == text


@pytest.mark.parametrize("text", ["~", "null", '""', "' '", "{}", "[]", '"a\\0b"'])
def test_an_empty_text_is_refused(text):
    """Nothing, blanks, blocks and NUL are no text."""
    with pytest.raises(FileError):
        value(text).text()


def test_only_true_and_false_are_booleans():
    """`yes` and `1` are not taken for true."""
    assert (value("true").boolean(), value("False").boolean()) == (True, False)
    for text in ("yes", "1", '"true"', "~"):
        with pytest.raises(FileError, match="write true or false"):
            value(text).boolean()


def test_a_free_value_has_the_type_that_it_looks_like():
    """Null, booleans, numbers and texts stay apart; zero and the empty text are values."""
    texts = ["null", "true", "8", "0.5", "1e3", "fp8", '"8"', '""', "0"]
    assert [value(text).scalar() for text in texts] == [None, True, 8, 0.5, 1000.0, "fp8", "8", "", 0]
    assert value("{x: [1, a], y: false}").plain() == {"x": [1, "a"], "y": False}


@pytest.mark.parametrize("text", ["on", "no", "010", "20:30", "2024-01-01", ".inf", "0o17"])
def test_a_free_value_that_yaml_versions_disagree_about_is_refused(text):
    """`[on, off, auto]` would be two booleans and a text."""
    with pytest.raises(FileError, match="read this differently"):
        value(text).scalar()


def test_a_choice_names_its_options_and_the_nearest():
    """A slip of the pen is answered with what was meant."""
    assert value("azure").choice(["mooncake", "azure"]) == "azure"
    with pytest.raises(FileError, match=r"got azrue; did you mean 'azure'\?: one of mooncake, azure"):
        value("azrue").choice(["mooncake", "azure"])


def test_faults_of_units_are_placed_in_the_file():
    """What a parser of units refuses is shown with the line of the value."""

    def parse(text):
        raise UnitError(f"got {text}: no unit")

    with pytest.raises(FileError, match=r"f\.yaml:1:4: a: got 60: no unit"):
        value("60").convert(parse)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "3:1: a: this key is given twice, first in line 1"),
        ("a: &x 1\n", "anchors"),
        ("a: *x\n", "aliases"),
        ("a: !!python/object/apply:os.system [touch pwned]\n", "tags"),
        ("!!map {a: 1}\n", "tags"),
        ("<<: {a: 1}\n", "merge keys"),
        ("a: 1\n---\nb: 2\n", "second document"),
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("a: [1, 2\n", "not valid YAML"),
        ("a: b: c\n", "not valid YAML"),
        ("a: \x07\n", "not valid YAML"),
        ("? [x]\n: 1\n", "plain word"),
        (": 1\n", "empty"),
        ("? |\n  x\n  y\n: 1\n", "one line"),
        ("[" * 100, "nested deeper"),
    ],
    ids=lambda text: repr(text)[:30],
)
def test_treacherous_yaml_is_refused(text, message):
    """Duplicate keys, tags, anchors, several documents and depth are errors with a place, in one line."""
    with pytest.raises(FileError) as caught:
        loads(text, "f.yaml").plain()
    assert message in str(caught.value)
    assert str(caught.value).startswith("f.yaml:")
    assert "\n" not in str(caught.value)


def test_an_alias_bomb_is_refused_at_once():
    """Nothing is expanded."""
    rows = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(FileError, match="anchors"):
        loads("a0: &a0 [x]\n" + "\n".join(rows), "f.yaml")


def test_a_large_file_is_refused_unread(tmp_path):
    """50 MB take neither time nor memory."""
    path = tmp_path / "big.yaml"
    with path.open("wb") as stream:
        stream.truncate(50_000_000)
    began = time.monotonic()
    with pytest.raises(InputError, match="larger than 256 KiB"):
        yamlfile.load(path)
    assert time.monotonic() - began < 5


def test_files_that_cannot_be_read_are_input_errors(tmp_path):
    """Missing files, directories, other encodings and impossible names."""
    (tmp_path / "latin.yaml").write_bytes("model: Müller\n".encode("latin-1"))
    with pytest.raises(InputError, match="not UTF-8"):
        yamlfile.load(tmp_path / "latin.yaml")
    with pytest.raises(InputError, match="it is a directory"):
        yamlfile.load(tmp_path)
    for name in ("none.yaml", "x" * 300, "a\x00b"):
        with pytest.raises(InputError):
            yamlfile.load(tmp_path / name)


def test_a_byte_order_mark_is_no_fault(tmp_path):
    """Some editors write one."""
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert yamlfile.load(tmp_path / "bom.yaml").plain() == {"a": 1}


_PIECES = st.sampled_from(
    [*list("[]{},:-?&*!|>'\"%@` \n\t#~"), "a", "b: ", "- ", "1e3", "<<", "---", "\n  ", "\u2028", "é"]
)


@given(st.lists(_PIECES, max_size=40).map("".join) | st.text(max_size=60))
def test_any_text_is_a_tree_or_a_file_error(text):
    """Whatever stands in a file, the answer is a value or one line with a place."""
    try:
        loads(text, "f.yaml").plain()
    except FileError as error:
        assert "\n" not in str(error)  # noqa: PT017  most texts are refused
