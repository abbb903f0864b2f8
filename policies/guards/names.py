"""Names of people, places, products: words written with a capital that no sentence begins with."""

from __future__ import annotations

from typing import Final

from policies.guards.alignment import Pair
from policies.guards.profile import Profile
from policies.guards.stemming import stem
from policies.guards.word_lists import listed

# Written small, these are other words.
_TWO_WORDS: Final = frozenset(
    "w:" + stem(word)[0]
    for word in listed(
        # months, peoples, places
        "may march august polish turkey china us chad jordan georgia jersey guinea cuba niger nice reading bath cork "
        "mobile sale orange lima split essen tours bury bend hell victoria wells rugby derby boulder phoenix buffalo "
        "sofia casablanca hull deal ware rye mercury venus earth mars saturn sun moon "
        # people
        "bill mark rob will frank grant pat sue rose lily amber ruby crystal dick jack john bob art gene miles bush cook "
        "jobs gates ford king queen prince pope church carpenter baker smith cooper hunter mason taylor fisher shepherd "
        "bishop knight young long short brown black white green gray grey stone wood woods hill field banks waters brook "
        "rivers day summer autumn april june dawn eve faith hope joy grace charity iris violet daisy heather holly ivy "
        "olive ginger pepper basil rich ray drew max buck cliff clay chase chance cash angel christian dean earl duke "
        "guy harry jean josh lance nick norm pierce reed rod rusty skip stew sting seal pink cher kiss cream police "
        "doors cars eagles genesis muse oasis "
        # companies, products, programs
        "apple amazon java python oracle it who target gap shell visa windows office word excel access outlook teams "
        "slack zoom discord signal chrome safari edge opera firefox spring flask react express go rust swift ruby perl "
        "scratch dart crystal elixir galaxy alphabet meta kindle echo nest fire prime dodge beetle golf jaguar puma dove "
        "tide crest mini smart mustang focus polo passion nike fanta sprite monster subway wish uber lyft square stripe "
        "block notion figma ghost hugo jekyll gatsby next angular docker swarm helm istio chef puppet salt vault consul "
        "nomad terraform kafka spark storm flink hive pig beam airflow presto impala pandas dask arrow parquet bash make "
        "cron git hub origin main master patch sonos bose siri alexa cortana gemini bard claude copilot "
        # games, works, institutions
        "risk clue life sorry cats chicago hair frozen cars titanic alien aliens friends lost house scrubs monk bones "
        "parliament congress senate state church mass bible koran house lords commons democrat democrats republican "
        "republicans liberal liberals labor labour greens catholic orthodox"
    )
)


class NameGuard:
    """Refuses a name that the other text does not have, and one that is a common word there."""

    name = "name"

    def refuses(self, pair: Pair) -> str:
        """See `Guard`."""
        stored, new = pair.stored, pair.new
        if not pair.statement and stored.acronyms != new.acronyms and not (stored.lower or new.lower):
            return "case"
        if stored.names == new.names:
            return ""
        if not (stored.names <= new.keys and new.names <= stored.keys):
            return "name"
        small = stored.names ^ new.names
        if pair.statement or stored.lower or new.lower:
            small &= _TWO_WORDS
        return "" if small <= self._opening(stored, new) else "case"

    @staticmethod
    def _opening(stored: Profile, new: Profile) -> set[str]:
        """Words that open a sentence, so that their capitals say nothing."""
        return {item.key for profile in (stored, new) for item in profile.items if item.first}
