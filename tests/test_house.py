"""The laws of the house; ``python -m tests.house`` prints them with what breaks each."""

from tests import house

# What breaks a law today, with its figure. Nothing may be added, no figure may grow, and what is
# mended is removed here as well.
BREACHES: dict[str, dict[str, int]] = {
    "at most 12 attributes per class": {
        "LoaderFacts": 18,  # facts of one loader, as best.yaml holds them
        "Program": 17,
        "SearchRequest": 24,  # one declaration of all options of a search
        "SearchResult": 31,
    },
    "at most 14 modules that import each other in a row": {"modules": 25},
    "at most 3 tuned constants per 1,000 code lines": {"constants": 411},
    "lines per room": {
        "cli": 2718,
        "inside": 14039,
        "measurement": 2080,
        "program": 2904,
        "results": 5560,
        "rig": 4288,
        "tuning": 7535,
    },
}


def test_nothing_breaks_a_law_but_what_is_listed() -> None:
    for law, found in house.breaches().items():
        listed = BREACHES.get(law, {})
        assert found.keys() == listed.keys(), law
        assert all(figure <= listed[name] for name, figure in found.items()), found
