"""Numbers, units, times and days of the year, each in one way of writing it."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Final

from policies.guards.word_lists import listed, words

_SMALL = listed("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen "
    ""
    "eighteen nineteen"
)  # fmt: skip
_TENS = listed("twenty thirty forty fifty sixty seventy eighty ninety")
_ORDINAL_ROOTS = listed("zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh "
    "twelfth thirteenth fourteenth "
    ""
    "fifteenth sixteenth seventeenth eighteenth nineteenth"
)  # fmt: skip
CARDINALS: Final = (
    {word: value for value, word in enumerate(_SMALL)}
    | {word: 10 * value for value, word in enumerate(_TENS, 2)}
)  # fmt: skip
SCALES: Final = {"hundred": 100, "thousand": 1_000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
ORDINALS: Final = (
    {word: value for value, word in enumerate(_ORDINAL_ROOTS)}
    | {word[:-1] + "ieth": 10 * value for value, word in enumerate(_TENS, 2)}
    | {"hundredth": 100, "thousandth": 1000}
)  # fmt: skip

_UNIT_ROWS = """
kg kilo kilos kilogram kilograms kilogramme kilogrammes kgs
g gram grams gramme grammes
mg milligram milligrams
lb lbs pound pounds
oz ounce ounces
ton tons
tonne tonnes
km kilometer kilometers kilometre kilometres kms
m meter meters metre metres
cm centimeter centimeters centimetre centimetres
mm millimeter millimeters millimetre millimetres
nm nanometer nanometers nanometre nanometres
mi mile miles
yd yard yards
ft foot feet
in inch inches
l liter liters litre litres
ml milliliter milliliters millilitre millilitres
gal gallon gallons
pt pint pints
cup cups
tbsp tablespoon tablespoons
tsp teaspoon teaspoons
s sec secs second seconds
ms millisecond milliseconds msec
us microsecond microseconds µs
ns nanosecond nanoseconds
min mins minute minutes
h hr hrs hour hours
day days
week weeks
month months
year years yr yrs
decade decades
century centuries
mph
kmh kph km/h
c celsius °c
f fahrenheit °f
kelvin
° degree degrees
% percent pct
$ dollar dollars usd
€ euro euros eur
£ gbp
¥ yen jpy
cent cents
kb kilobyte kilobytes
mb megabyte megabytes
gb gigabyte gigabytes
tb terabyte terabytes
bit bits
byte bytes
hz hertz
khz kilohertz
mhz megahertz
ghz gigahertz
w watt watts
kw kilowatt kilowatts
kwh
v volt volts
a amp amps ampere amperes
cal calorie calories
kcal kilocalorie kilocalories
am a.m
pm p.m
mile/h
"""
UNITS: Final = {word: row.split()[0] for row in _UNIT_ROWS.strip().splitlines() for word in row.split()}
# Words as well as units: they are read as units only next to a number, where they cannot be the word.
_NOT_AFTER_A_SPACE = words("in a us")

MONTHS: Final = {
    name: number
    for number, names in enumerate(
        [
            "january jan",
            "february feb",
            "march mar",
            "april apr",
            "may",
            "june jun",
            "july jul",
            "august aug",
            "september sep sept",
            "october oct",
            "november nov",
            "december dec",
        ],
        1,
    )
    for name in names.split()
}
_WRITTEN: Final = re.compile(r"([-+]?)([$€£¥]?)([\d,]*\.?\d+)(%|°?[A-Za-zµ]*|°)\Z")
_MULTIPLES = {"k": 1000, "bn": 10**9, "mln": 10**6, "tn": 10**12}


def plain(value: Decimal) -> str:
    """One spelling of a value: no exponent, no trailing zeros."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def written_number(text: str) -> tuple[Decimal, str] | None:
    """Digits as written, with what stands directly before and behind → value and unit; ordinals have the unit "th"."""
    match = _WRITTEN.match(text)
    if match is None:
        return None
    sign, currency, digits, suffix = match.groups()
    try:
        value = Decimal(sign + digits.replace(",", ""))
    except InvalidOperation:
        return None
    lower = suffix.lower()
    if lower in {"st", "nd", "rd", "th"}:
        return value, "th"
    if suffix in {"k", "K"} or lower in _MULTIPLES:
        return value * _MULTIPLES[lower], UNITS.get(currency, "")
    unit = UNITS.get(currency, "") if currency else ""
    # Capitals tell units apart that small letters do not: 5 M is not 5 m, nor Mb MB.
    known = (
        suffix
        if len(suffix) <= 2 and suffix not in {"AM", "PM", "KG", "KM"} and suffix != lower
        else UNITS.get(lower, suffix)
    )
    return value, unit + known


def spoken_number(words: list[str]) -> tuple[Decimal, int, bool] | None:
    """Leading number words → value, how many words they are, whether the last one is an ordinal."""
    total = current = used = 0
    seen = ordinal = False
    for word in words:
        if word in CARDINALS:
            if seen and current % 100 and not (current % 100 >= 20 and current % 10 == 0 and CARDINALS[word] < 10):
                break
            current += CARDINALS[word]
        elif word in SCALES and (seen or word != "dozen"):
            current = max(current, 1) * SCALES[word]
            if SCALES[word] > 100:
                total, current = total + current, 0
        elif word in ORDINALS:
            current += ORDINALS[word]
            ordinal = seen = True
            used += 1
            break
        elif (
            word == "and"
            and seen
            and current
            and current % 100 == 0
            and used + 1 < len(words)
            and (words[used + 1] in CARDINALS or words[used + 1] in ORDINALS)
        ):
            used += 1
            continue
        else:
            break
        seen = True
        used += 1
    return (Decimal(total + current), used, ordinal) if seen else None


def unit_of(word: str, *, capital: bool = False) -> str:
    """The unit that `word` names after a number and a space; "" where it names none. `capital`: its first letter is
    one, which tells mega from milli.
    """
    if capital and len(word) <= 2:
        return word.capitalize()
    return "" if word in _NOT_AFTER_A_SPACE else UNITS.get(word, "")
