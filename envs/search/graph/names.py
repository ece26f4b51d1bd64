"""Names of a generated world: made from parts, all different, without a table of those in use.

A `NameSpace` lists the parts; number `n` of a shuffled space is the name of the n-th thing. The
nouns of the kinds differ, so that no two things of a world share a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.envs.search.graph.hashing import Permutation


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_FEMALE = _words(
    """
Ada Agnes Alba Alice Amara Anita Anna Bella Berta Bianca Carla Celia Clara Dora Edith Elena
Elsa Emma Erika Esther Eva Fiona Flora Freya Greta Hanna Hazel Helga Ida Ines Irene Iris
Isla Jana Julia Karin Klara Laura Lena Lina Livia Lucia Magda Maria Marta Mila Mina Nadia
Nina Nora Olga Paula Petra Rita Rosa Ruth Sara Selma Sofia Tanja Thea Ursula Vera
"""
)
_MALE = _words(
    """
Adam Alan Albin Anton Arno Bela Boris Bruno Carl Cyril Dario Denis Edgar Edwin Emil Enzo
Erik Felix Frank Georg Gino Gustav Hans Hugo Igor Ivan Jakob Jan Joel Jonas Karl Kurt Lars
Leon Luis Marc Mario Martin Max Milan Nils Noel Olaf Oscar Otto Pablo Paul Peter Ralf Remo
Rolf Roman Rudolf Samuel Simon Stefan Sven Theo Tomas Urban Victor Walter Xaver
"""
)
_STEMS = _words(
    """
Hal Bran Mor Wil Tor Kel Lin Bar Dal Fen Gor Har Jar Kor Lan Mar Nor Pel Ros Sel Tal Var Wes
Zel
"""
)
_SURNAME_ENDINGS = _words(
    """
berg mann stein feld son wick more ley well ton gate croft hurst brook field shaw ward holt
den ridge
"""
)
_PLACE_STEMS = _words(
    """
Alder Amber Ash Birch Black Bright Clear Cold Copper Crow Deep Dun East Elm Fair Falcon Fox
Glen Gold Gray Green Hazel High Hollow Iron Kings Lake Long Maple Mill Moss Oak Otter Pine
Raven Red River Rose Salt Sand Silver Snow Stone Summer Swan Thorn West Wolf
"""
)
_PLACE_ENDINGS = _words(
    """
ford bury haven mouth stead port dale wood minster cliff bridge marsh combe fall crest moor
hill water pool burg
"""
)
_PLACE_PREFIXES = _words("North South Upper Lower Old New Great Little Saint Inner Outer Far")
_COMPANY_NOUNS = _words(
    """
Foundry Bank Press Mills Institute Railways Brewery Shipyard Laboratories Observatory
Academy Ironworks Pharmacy Glassworks Bakery Insurance Airlines Theatre Hospital Quarry
Tannery Vineyards Telegraph Printworks Museum Orchestra Canneries Motors Textiles Dairy
"""
)
_ADJECTIVES = _words(
    """
Silent Golden Broken Hidden Distant Burning Frozen Quiet Crimson Hollow Endless Secret
Painted Velvet Wandering Sleeping Stolen Empty Patient Restless Gentle Savage Borrowed
Crooked Faithful Forgotten Glass Iron Lonely Midnight Northern Paper Pale Proud Rising
Sacred Salted Scarlet Second Shining Simple Singing Sunken Tender Twisted Unseen Violet
Wooden Yellow Ancient Bitter Careless Drifting Eastern Fallen Floating Gilded Humble
Laughing Marble Narrow Open Perfect Vanished
"""
)
_NOUNS = _words(
    """
Harbor Orchard Lantern Mirror Garden Voyage Letter Winter Bridge Tower Shadow River Window
Candle Forest Market Clock Island Promise Station Compass Feather Stranger Kingdom Library
Mountain Ocean Piano Queen Raincoat Sister Teacher Umbrella Valley Watchman Yardstick Anchor
Balcony Carriage Daughter Engine Fountain Gardener Horizon Inkwell Journey Keeper Labyrinth
Meadow Needle Oracle Passenger Quarrel Ribbon Sailor Tailor Uncle Violin Wedding Almanac
Beacon Chapel Doorway Echo
"""
)
_EVENT_NOUNS = _words(
    """
Regatta Tournament Marathon Rally Derby Championship Open Festival Cup Prize Games Trophy
Grandprix Contest Medal Classic League Relay Masters Series
"""
)
_EVENT_PREFIXES = _words(
    "Winter Spring Summer Autumn Royal National Coastal Alpine Grand Junior Central Jubilee"
)
_INITIALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_SURNAMES = tuple(stem + ending for stem in _STEMS for ending in _SURNAME_ENDINGS)
_PLACES = tuple(stem + ending for stem in _PLACE_STEMS for ending in _PLACE_ENDINGS)
_ROOM = 2
"""A space of fewer names than this for each thing is enlarged by its last part."""


@dataclass(frozen=True, slots=True)
class NameSpace:
    """A pattern with one list of words for each `{}`.

    Example:
        NameSpace("The {} {}", (("Silent", "Golden"), ("Harbor", "Orchard"))) holds four names.
    """

    pattern: str
    parts: tuple[Sequence[str], ...]

    @property
    def size(self) -> int:
        """How many names there are."""
        size = 1
        for words in self.parts:
            size *= len(words)
        return size

    def name(self, number: int) -> str:
        """Return name `number`, from 0."""
        chosen: list[str] = []
        for words in reversed(self.parts):
            number, place = divmod(number, len(words))
            chosen.append(words[place])
        return self.pattern.format(*reversed(chosen))


_FIRST = (*_FEMALE, *_MALE)
# kind -> a space for small worlds and one for large worlds
_SPACES = {
    "person": (
        NameSpace("{} {}", (_FIRST, _SURNAMES)),
        NameSpace("{} {} {}", (_FIRST, _INITIALS, _SURNAMES)),
    ),
    "place": (
        NameSpace("{}", (_PLACES,)),
        NameSpace("{} {}", (_PLACE_PREFIXES, _PLACES)),
    ),
    "organisation": (
        NameSpace("{} {}", (_SURNAMES, _COMPANY_NOUNS)),
        NameSpace("{} {} {}", (_EVENT_PREFIXES, _SURNAMES, _COMPANY_NOUNS)),
    ),
    "work": (
        NameSpace("The {} {}", (_ADJECTIVES, _NOUNS)),
        NameSpace("The {} {} and the {}", (_ADJECTIVES, _NOUNS, _NOUNS)),
    ),
    "event": (
        NameSpace("{} {}", (_SURNAMES, _EVENT_NOUNS)),
        NameSpace("{} {} {}", (_EVENT_PREFIXES, _SURNAMES, _EVENT_NOUNS)),
    ),
}


class Names:
    """The names of `count` things of one kind."""

    def __init__(self, kind: str, count: int, *, key: int) -> None:
        small, large = _SPACES[kind]
        self._space = small if count * _ROOM <= small.size else large
        if count > self._space.size:
            raise ValueError(
                f"there are names for {self._space.size} of the kind {kind!r} (got {count!r})"
            )
        self._shuffled = Permutation(self._space.size, key=key)

    def __getitem__(self, number: int) -> str:
        """Return the name of thing `number`, from 0."""
        return self._space.name(self._shuffled(number))


def is_female(name: str) -> bool:
    """Return whether a person's first name is a woman's."""
    return name.split(" ", 1)[0] in _FEMALE_SET


_FEMALE_SET = frozenset(_FEMALE)
