"""YAML that people edit is read with the line of each key, and says where it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import FileFormatError
from autotune.knobs.space import yamlfile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A path with spaces and quotes."""
    directory = tmp_path / 'it\'s a "place"'
    directory.mkdir()
    return directory / "my file.yaml"


def test_each_key_is_known_by_its_line_at_any_depth(path: Path) -> None:
    path.write_text("# a comment\nversion: 1\n\nknobs:\n  workers: auto\n  compile:\n    - off\n")
    file = yamlfile.read(path)
    assert file.where("version") == f"{path}:2"
    assert file.where("knobs") == f"{path}:4"
    assert file.where("knobs", "compile") == f"{path}:6"


def test_a_key_that_is_not_there_is_placed_at_the_nearest_above(path: Path) -> None:
    path.write_text("version: 1\nknobs:\n  workers: auto\n")
    file = yamlfile.read(path)
    assert file.where("knobs", "compile") == f"{path}:2"
    assert file.where("knobs", "workers", "bool") == f"{path}:3"
    assert file.where("elsewhere") == str(path)
    assert file.where() == str(path)


def test_keys_of_the_flow_style_have_lines_too(path: Path) -> None:
    path.write_text("a: {b: 1,\n    c: 2}\n")
    assert yamlfile.read(path).where("a", "c") == f"{path}:2"


def test_text_is_utf_8(path: Path) -> None:
    path.write_bytes("name: größe\n".encode())
    assert yamlfile.read(path).data == {"name": "größe"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\nb: [1, 2\nc: 3\n", ":3: this is not YAML"),
        (b"a: 1\n b: 2\n", ":2: this is not YAML"),
        (b"a: !!python/object:os.system {}\n", ":1: this is not YAML"),
        (b"a: 1\n---\nb: 2\n", ":2: this is not YAML"),
        (b"a: \x00\n", ": this is not YAML"),
        (b"- a\n- b\n", ": expected 'key: value' lines, found list"),
        (b"just words\n", ": expected 'key: value' lines, found str"),
        (b"", ": expected 'key: value' lines, found NoneType"),
    ],
    ids=["brackets", "indent", "tag", "documents", "control", "list", "text", "empty"],
)
def test_what_is_no_mapping_is_refused_with_the_place(
    path: Path, content: bytes, message: str
) -> None:
    path.write_bytes(content)
    with pytest.raises(FileFormatError) as refusal:
        yamlfile.read(path)
    assert str(refusal.value).startswith(f"{path}{message}")


def test_a_missing_file_a_directory_and_another_encoding_are_told_apart(path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"^There is no file '.*my file\.yaml'\.$"):
        yamlfile.read(path)
    with pytest.raises(FileFormatError, match="cannot be read"):
        yamlfile.read(path.parent)
    path.write_bytes("name: größe\n".encode("latin-1"))
    with pytest.raises(FileFormatError, match="cannot be read"):
        yamlfile.read(path)
