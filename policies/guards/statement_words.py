"""Words by which statements about software are told, as data: which of them carry no content of their own."""

from __future__ import annotations

from typing import Final

from policies.guards.stemming import stem
from policies.guards.thesaurus import STATEMENT_TERMS


def _stems(text: str) -> frozenset[str]:
    return frozenset("w:" + stem(word)[0] for word in text.split())


FRAME: Final = _stems(
    """
    ability able access according-to action allow argument available call capability capable certain class contain
    data dataset designed employ enable exist facilitate feature following function functionality furnish given have
    include information intended kind library manner method module offer option order parameter particular possible
    process provide purpose relate related serve set specific specified suchlike support task type use user utilize
    value various way
    """
) | {"p:you", "p:your", "p:this", "p:these", "p:those", "p:here", "p:we", "p:it", "p:its", "p:they", "p:them", "p:their", "n:1"}
"""Words that a statement may do without: what it tells stands in the others."""

_GENERAL: Final = _stems(
    """
    account accuracy achieve actual additionally adhere advice aspect assemble back basis become behavior benefit
    broad caliber case characteristic citation clear click code collective combination come common commonly complex
    concept conceptual condition consistent consult content context contribute convenient conversion criterion
    decide degree demonstrate depend derive desired detail detailed devote diverse don due duty ease easier
    effective effectiveness effort element embody encapsulate encompass entity enumerate environment essence
    establish etc evident exactly explicit explicitly expose extensive extent fact factor field file focus frequent
    fundamental further gain general generally generation go goal guidance helpful host idea ideal impact implement
    implementation importance improvement individual insight instance instruction integral integration intention
    interest introduction involve issue item kind level likely list logical main mainly major matter mean means
    measure need notable note objective obligation obvious occur opportunity outcome outline overall overview own
    part particularly partly perspective phase point potential practice precise presence principle prior procedure
    project proper quality quantity question randomly reason reference regarding relation relevant remain removal
    render represent resort resource respect respective result role scope seamless seek sense significant simpler
    simply situation solution specialised specifically standard state status strategy structure style subject
    substantial successful successfully suggest sure tailor tap target task tend term theme together topic tutorial
    typical typically undergo understanding unique usage utility valuable variety version view vital whole wide work
    works
    """
)
_WEIGHTY: Final = _stems(
    """
    absent alike apart arbitrary archive audio automatic bad best better block boolean break briefly broken bypass
    cache circumvent clear close column combine compile completely complex complicated compress constant copy
    deactivate decode decompress decrease delete deny deploy deprecated destroy different difficulty diminish
    disable discard discontinue disregard distinct diverse download drop dynamic easy elaborate empty encode encrypt
    end entire entirely equal erase error evaluation exception exclude export external extract fail false fast field
    filter final finish first fixed forbid forget former formerly fresh full fully global half halt hide highest
    hinder huge identical ignore illegal image impede import impossible incomplete individual initial inner install
    integer internal intricate invalid isolated join key large last latest least limit local lose loss lowest manual
    many massive maximum merge minimize minimum missing multiple native neglect new next number numeric numerical
    obsolete old omit one opposite optimal outside partial pause permanent picture prevent previous prior private
    problem prohibit pull push quick random randomize recent record reduce refuse reject remote remove rename
    restrict revert row same separate several shorten shrink shuffle similar single skip slow small sort sound split
    static stop string subsequent table temporary terminate test testing text textual tiny total train training
    transient trouble truncate unavailable undo unique universal unpack unsafe upload validation vast vision visual
    whole worldwide worse worst wrong
    """
)
"""General, and yet they turn a meaning round or narrow it: never without their like."""

LIGHT: Final = FRAME | ((_GENERAL | {"w:" + root for root in STATEMENT_TERMS}) - _WEIGHTY)
"""General words of telling; the content is in the others."""
