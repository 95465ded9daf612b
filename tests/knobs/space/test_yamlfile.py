"""YAML that people edit is read with the line of each key, and says where it is wrong."""

from pathlib import Path

import pytest

from autotune.errors import FileFormatError
from autotune.knobs.space import yamlfile


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
def test_what_is_no_mapping_is_refused(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(FileFormatError) as refusal:
        yamlfile.read(path)
    assert str(refusal.value).startswith(f"{path}{message}")
    with pytest.raises(FileFormatError, match="cannot be read"):
        yamlfile.read(path.parent)
    path.write_bytes("name: größe\n".encode("latin-1"))
    with pytest.raises(FileFormatError, match="cannot be read"):
        yamlfile.read(path)
