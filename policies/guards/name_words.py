"""Names that are other words where they are written small: what is rust, what is Rust; as data."""

from __future__ import annotations

from typing import Final

from policies.guards.stemming import stem
from policies.guards.word_lists import listed

_PLACES = """
may march august polish turkey china us chad jordan georgia jersey guinea cuba niger nice reading bath cork mobile
sale orange lima split essen tours bury bend hell victoria wells rugby derby boulder phoenix buffalo sofia
casablanca hull deal ware rye mercury venus earth mars saturn sun moon
"""
"""Months, peoples and stars besides."""
_PEOPLE = """
bill mark rob will frank grant pat sue rose lily amber ruby crystal dick jack john bob art gene miles bush cook jobs
gates ford king queen prince pope church carpenter baker smith cooper hunter mason taylor fisher shepherd bishop
knight young long short brown black white green gray grey stone wood woods hill field banks waters brook rivers day
summer autumn april june dawn eve faith hope joy grace charity iris violet daisy heather holly ivy olive ginger
pepper basil rich ray drew max buck cliff clay chase chance cash angel christian dean earl duke guy harry jean josh
lance nick norm pierce reed rod rusty skip stew sting seal pink cher kiss cream police doors cars eagles genesis
muse oasis
"""
_PRODUCTS = """
apple amazon java python oracle it who target gap shell visa windows office word excel access outlook teams slack
zoom discord signal chrome safari edge opera firefox spring flask react express go rust swift perl scratch dart
elixir galaxy alphabet meta kindle echo nest fire prime dodge beetle golf jaguar puma dove tide crest mini smart
mustang focus polo passion nike fanta sprite monster subway wish uber lyft square stripe block notion figma ghost
hugo jekyll gatsby next angular docker swarm helm istio chef puppet salt vault consul nomad terraform kafka spark
storm flink hive pig beam airflow presto impala pandas dask arrow parquet bash make cron git hub origin main master
patch sonos bose siri alexa cortana gemini bard claude copilot
"""
_WORKS = """
risk clue life sorry cats chicago hair frozen titanic alien aliens friends lost house scrubs monk bones parliament
congress senate state mass bible koran lords commons democrat democrats republican republicans liberal liberals
labor labour greens catholic orthodox
"""

TWO_WORDS: Final = frozenset("w:" + stem(word)[0] for word in listed(f"{_PLACES} {_PEOPLE} {_PRODUCTS} {_WORKS}"))
"""Keys: of these, capitals tell one from the other even where a text is written without care for them."""
