"""Search spaces in YAML: the shipped ones load, and a wrong one says all that is wrong, by line."""

import os
from pathlib import Path

import pytest

from autotune.errors import FileFormatError, UsageError
from autotune.knobs import registry
from autotune.knobs.space import spacefile, yamlfile
from autotune.knobs.space.space import HELD
from tests.made import MACHINES, make_profile


def faults_of(directory: Path, text: str) -> list[str]:
    """Return the lines of the error with the path cut off, so ``:3: …`` remains."""
    path = directory / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FileFormatError) as refusal:
        spacefile.load(str(path))
    return [line.removeprefix(str(path)) for line in str(refusal.value).splitlines()]


@pytest.mark.parametrize("name", spacefile.shipped_names())
def test_every_shipped_space_loads_by_name_and_offers_something_everywhere(name: str) -> None:
    space = spacefile.load(name)
    assert space.name == name
    assert set(space.knobs) | set(space.fixed) <= set(registry())
    assert not space.requested
    text = (spacefile.shipped_dir() / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# "), "it says what it is for"
    for hardware in MACHINES.values():
        device = "cuda" if hardware.gpus else "cpu"
        assert space.resolve(hardware, make_profile(device=device)).domains


def test_an_unknown_name_is_answered_with_the_nearest_and_the_list() -> None:
    with pytest.raises(UsageError) as refusal:
        spacefile.load("defualt")
    message = str(refusal.value)
    assert "no search space 'defualt'" in message
    assert "Did you mean 'default'?" in message
    assert ", ".join(spacefile.shipped_names()) in message
    assert set(spacefile.load("full").knobs) == registry().keys() - HELD.keys()


def test_a_file_gives_values_and_fixed_knobs_which_are_not_searched(workplace: Path) -> None:
    path = workplace / "space"
    path.write_text(
        "version: 1\nknobs:\n  workers: [0, 2, 2]\n  compile: [off, default]\n"
        "  precision: auto\n  memory_format: auto\nfixed:\n  memory_format: channels_last\n"
    )
    space = spacefile.load(str(path))
    expected = {"workers": (0, 2), "compile": ("off", "default"), "precision": None}
    assert (space.name, space.knobs) == ("space", expected)
    assert space.fixed == {"memory_format": "channels_last"}


def test_every_fault_is_told_at_once_with_file_line_and_nearest_key(workplace: Path) -> None:
    faults = faults_of(
        workplace,
        "version: 2\n"
        "knob:\n"
        "  workers: auto\n"
        "knobs:\n"
        "  batchsize: auto\n"
        "  precision: [fp32, fp8]\n"
        "  workers: 4\n"
        "  prefetch_factor: []\n"
        "  compile: auto\n"
        "fixed:\n"
        "  keep_freed_memory: maybe\n"
        "  memory_fromat: true\n",
    )
    assert faults[0].startswith(":2: Unknown key 'knob'. Did you mean 'knobs'?")
    assert faults[1].startswith(":1: version is 2, but this autotune reads 1.")
    assert faults[2].startswith(":5: Unknown setting 'batchsize'. Did you mean 'batch_size'?")
    assert (
        faults[3]
        == ":6: setting 'precision' takes fp32 or tf32 or medium or bf16 or fp16, not 'fp8'."
    )
    assert faults[4] == ":7: setting 'workers' takes 'auto' or a list of values, not 4."
    assert faults[5] == ":8: setting 'prefetch_factor' takes 'auto' or a list of values, not []."
    assert faults[6] == ":11: setting 'keep_freed_memory' takes true or false, not 'maybe'."
    assert faults[7].startswith(
        ":12: Unknown setting 'memory_fromat'. Did you mean 'memory_format'?"
    )
    assert len(faults) == 8


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("knobs: {workers: auto}\n", ": version is None, but this autotune reads 1."),
        ("version: one\nknobs: {workers: auto}\n", ":1: version is 'one'"),
        ("version: 1\nknobs:\n  workers: [0, 2]\n  workers: [4]\n", ":4:"),
        ("version: 1\nknobs:\n", ": 'knobs' is missing or empty."),
        ("version: 1\nknobs: [workers]\n", ":2: 'knobs' must consist of 'setting: value' lines."),
        ("version: 1\nknobs:\n  workers:\n", ":3: setting 'workers' takes 'auto' or a list"),
        ("version: 1\nknobs:\n  7: auto\n", ":3: Unknown setting '7'."),
    ],
)
def test_each_fault_stands_with_its_line(workplace: Path, text: str, fault: str) -> None:
    (found,) = faults_of(workplace, text)
    assert found.startswith(fault)


@pytest.fixture
def path(workplace: Path) -> Path:
    return workplace / "my file.yaml"


def test_each_key_is_known_by_its_line_or_by_that_of_the_nearest_above(path: Path) -> None:
    path.write_text("# größe\nversion: 1\n\nknobs:\n  workers: auto\n  a: {a: 1,\n    b: 2}\n")
    file = yamlfile.read(path)
    for keys, line in (
        (("version",), ":2"),
        (("knobs", "workers"), ":5"),
        (("knobs", "a", "b"), ":7"),
        (("knobs", "workers", "bool"), ":5"),
        (("knobs", "zzz"), ":4"),
        (("elsewhere",), ""),
    ):
        assert file.where(*keys) == f"{path}{line}"


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 9}]\n" for n in range(1, 10))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", ":3: this is not YAML"),
        ("a: 1\n b: 2\n", ":2: this is not YAML"),
        ("a: !!python/object:os.system {}\n", ":1: this is not YAML"),
        ("a: 1\n---\nb: 2\n", ":2: this is not YAML"),
        ("a: \x00\n", ": this is not YAML"),
        ("- a\n- b\n", ": expected 'key: value' lines, found list"),
        ("just words\n", ": expected 'key: value' lines, found str"),
        ("", ": expected 'key: value' lines, found NoneType"),
        # What may come from somebody else: each of these hung, or ended with a traceback
        (BOMB, ":2: it repeats a part by an alias (*a0)"),
        ("a: &a\n  b: *a\n", ":2: it repeats a part by an alias (*a)"),
        ("a: 1\nb: " + "[" * 5000, ":2: autotune reads files of up to 32 levels"),
        ("a: 1\nb:\n" + "- x\n" * 12_000, ":9998: autotune reads files of up to 10,000 entries"),
        ("a: 1\nb: 2001-02-30\n", ":2: '2001-02-30' is no timestamp. If it is text, put it in"),
        ("a: 1\nb: !!int x\n", ":2: 'x' is no int."),
        ("b: !!bool x\n", ":1: 'x' is no bool."),
        ("b: " + "7" * 5000, ":1: '777777777777...7777777777777' is no int."),
        ("b: 1" + ":1" * 50_000, ":1: '1:1:1:1:1:1:...1:1:1:1:1:1:1' is no int."),
        ("a:\n- 2001-02-03: x\n", ":2: only a word or a number can be a key."),
        ("? [a, b]\n: c\n", ":1: only a word or a number can be a key."),
        ("a: {b: 1}\nc:\n  <<: {d: 1}\n", ":3: only a word or a number can be a key."),
    ],
    ids=range(20),
)
def test_what_is_no_mapping_is_refused(path: Path, content: str, message: str) -> None:
    path.write_text(content)
    with pytest.raises(FileFormatError) as refusal:
        yamlfile.read(path)
    assert str(refusal.value).startswith(f"{path}{message}")


def test_what_cannot_be_read_whole_is_refused(path: Path) -> None:
    os.mkfifo(path)
    for unreadable in (path, path.parent, Path("/dev/zero")):
        with pytest.raises(FileFormatError, match="cannot be read"):
            yamlfile.read(unreadable)
    path.unlink()
    for content, why in (("name: größe".encode("latin-1"), "decode"), (b"#" * 1_000_001, "1 MB")):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=f"cannot be read: .*{why}"):
            yamlfile.read(path)
