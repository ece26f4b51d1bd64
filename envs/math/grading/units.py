r"""Units behind a number: read off, and named in one way where they are known ones.

A unit that only one side writes makes no difference; two known ones that differ do. Nothing is
converted.
"""

from __future__ import annotations

import re

_NAMES = {
    "mm": "mm millimeter millimetre", "cm": "cm centimeter centimetre", "m": "m meter metre",
    "km": "km kilometer kilometre", "in": "in inch inches", "ft": "ft foot feet", "yd": "yd yard",
    "mi": "mi mile", "mg": "mg milligram", "g": "g gram", "kg": "kg kilogram", "lb": "lb lbs pound",
    "oz": "oz ounce", "ml": "ml mL milliliter millilitre", "l": "l L liter litre",
    "gal": "gal gallon", "s": "s sec second", "min": "min minute", "h": "h hr hrs hour",
    "day": "day", "week": "week", "month": "month", "year": "year yr",
    "km/h": "kph kmh kmph", "mi/h": "mph", "m/s": "mps", "am": "am AM", "pm": "pm PM",
    "ha": "ha hectare", "qt": "qt quart", "pt": "pt pint", "deg": "degree deg",
    "rad": "radian rad", "dollar": "dollar usd", "cent": "cent", "euro": "euro eur",
}  # fmt: skip
_SYMBOLS = "Rs Hz kHz MHz GHz kW MW kWh kB KB MB GB TB dl dL cl cL dm nm hp"
_CANONICAL = {alias: unit for unit, aliases in _NAMES.items() for alias in aliases.split()}
_CANONICAL |= {symbol: symbol for symbol in _SYMBOLS.split()}
_SMALL_WORDS = frozenset({"of", "to", "an", "at"})
"""Of two letters, as in `cups of tea`; others are products of variables."""
_NOT_UNITS = frozenset(
    [
        "e",
        "i",
        "x",
        "y",
        "z",
        "and",
        "or",
        "pi",
        "sqrt",
        "sin",
        "cos",
        "tan",
        "log",
        "ln",
        "infinity",
    ]
)

_VARIABLES = 2
"""Letters that may be a product, so that `4 ab` is not four of something."""

_CURRENCY = re.compile(r"^(-?)\s*(?:\\?\$|USD\b|€|£)\s*(?=[\d.\\-])|(?<=[\d}])\s*(?:\\?\$|€|£)$")
_PERCENT = re.compile(r"\s*(?:\\?%|\bpercent(?:age points?)?\b|\bpct\b)\s*$", re.IGNORECASE)
_DEGREES = re.compile(r"\s*\^\\circ\s*([CF])?\s*$")
_QUOTIENT = re.compile(r"\s*/\s*|\s+per\s+")
_WORD = r"[a-zA-Z]{2,}|[a-zA-Z](?![a-zA-Z])"
_UNIT = re.compile(
    rf"(?P<body>.*[0-9}})])\s+(?P<unit>(?:{_WORD})(?:\^\{{?[23]\}}?)?"
    rf"(?:(?:\s+|\s*/\s*|\s*\\cdot\s*)(?:{_WORD})(?:\^\{{?[23]\}}?)?){{0,5}})"
)
_GLUED = re.compile(
    r"(?P<body>[-+]?\d+(?:\.\d+)?)(?P<unit>(?:(?:mm|cm|km|kg|mg|ml|mL|ft|lbs?)(?:/(?:h|hr|s|sec|min))?"
    r"|m/s|mph|kph|hrs?|min|am|pm|AM|PM))(?P<power>\^\{?[23]\}?)?"
)


def read_unit(text: str) -> tuple[str, str]:
    r"""Return what stands before the unit, and the unit: canonical, `%`, or empty if not known.

    Example:
        read_unit("10 cm^2") is ("10", "cm^2"), read_unit("50\\%") is ("50", "%"),
        read_unit("18 apples") is ("18", ""), read_unit("5x") is ("5x", "").
    """
    if _CURRENCY.search(text):
        return _CURRENCY.sub(r"\1", text).strip(), "dollar"
    if _PERCENT.search(text):
        return _PERCENT.sub("", text).strip(), "%"
    if _DEGREES.search(text):
        return _DEGREES.sub("", text).strip(), "deg"
    match = _UNIT.fullmatch(text)
    if match is not None and _is_unit(match["unit"]):
        return match["body"].strip(), _canonical(match["unit"])
    match = _GLUED.fullmatch(text)
    if match is not None:
        return match["body"], _canonical(match["unit"] + (match["power"] or ""))
    return text, ""


def _is_unit(text: str) -> bool:
    words = re.findall(r"[a-zA-Z]+", text)
    return words[0] not in _SMALL_WORDS and all(
        word in _CANONICAL
        or word in _SMALL_WORDS
        or (len(word) > _VARIABLES and word not in _NOT_UNITS)
        for word in words
    )


def _canonical(text: str) -> str:
    """Return the one name of a known unit, with its power; an empty string for others.

    Example:
        _canonical("miles per hour") is "mi/h", as of "mph"; _canonical("apples") is "".
    """
    names = [_simple(part) for part in _QUOTIENT.split(text)]
    return "/".join(names) if all(names) else ""


def _simple(text: str) -> str:
    text = text.replace("{", "").replace("}", "")
    prefix = re.match(r"(square|sq|cubic|cu)\.?\s+", text)
    power = {"s": "^2", "c": "^3"}[prefix[1][0]] if prefix else ""
    text = text[prefix.end() :] if prefix else text
    if text.endswith(("^2", "^3")):
        text, power = text[:-2], text[-2:]
    name = _CANONICAL.get(text) or _CANONICAL.get(text.lower().removesuffix("s"))
    return f"{name}{power}" if name else ""
