"""Words by which statements about software are told, as data: which of them carry no content of their own."""

from __future__ import annotations

from typing import Final

from policies.guards.stemming import stem
from policies.guards.thesaurus import STATEMENT_TERMS


def _stems(text: str) -> frozenset[str]:
    return frozenset("w:" + stem(word)[0] for word in text.split())


FRAME: Final = _stems(
    """
    ability able access according-to action allow available call capability capable certain class contain
    data designed employ enable exist facilitate following function functionality furnish given have
    include information intended kind manner method offer option order particular possible
    provide relate related serve set specific specified suchlike support task type use utilize
    various way
    """
) | {
    "p:you",
    "p:your",
    "p:this",
    "p:these",
    "p:those",
    "p:here",
    "p:we",
    "p:it",
    "p:its",
    "p:they",
    "p:them",
    "p:their",
    "n:1",
}
"""Words that a statement may do without: what it tells stands in the others."""

_GENERAL: Final = _stems(
    """
    module library value user process feature argument parameter
    attribute size special specially effectively properly assign knowledge similar convenient workflow eager own
    progress progressive achieve practical practically precise precisely assess suitable search distinct combine
    easily optionally optional
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
_COMMON: Final = _stems(
    """
    accommodate accompany accomplish accomplishment account acquire act activity adapt address adequate adhere
    adhering adopt advance advantage advise affect agree aim align allocate analysis analyze answer anticipate
    appear appearance applicable application apply appoint appreciate approach appropriate arise arrange arrangement
    arrive aspect assemble assess assign assist assistance associate association assume attach attain attempt attend
    attention attribute author await aware base basic basically basis bear become behave behaviour belong beneficial
    benefit bring build capability capable carry case category cause characteristic choice choose circumstance cite
    clarify collaborate collaborative collective combine come comfortable command comment commonly communicate
    communication compare comparison compatible complement component comprehend comprehensive comprise compute
    concentrate concern conduct confirm connect connection consequence consequently consider considerable
    consideration consist consistent consistently constitute construct construction consult consume contact
    contemplate contribute contribution convenient conveniently convey cooperate coordinate correspond
    correspondingly cover craft creation currently customary deal decide decision declare dedicate dedicated deem
    define definition deliver demand demonstrate demonstration denote depend depict derive describe description
    deserve design designate desirable desire detail detailed determine develop developer development devise devote
    differ dimension direct direction directly discover discovery discuss discussion display distribute distribution
    document draw dress easily effect effective effectively efficiency efficient efficiently effort effortless
    effortlessly elaborate element embody emerge emphasize employ employment enable encompass encounter encourage
    engage engagement enhance enhancement enjoy ensure entail entire entity environment equip especially essential
    essentially establish establishment evaluate evaluation eventually evident evidently examination examine
    exchange execute execution exhibit exist existence expand expect expectation experience experienced experiment
    expert explain explanation explicit explicitly exploit exploration explore express expression extend extension
    extent facilitate facility factor familiar familiarity familiarize fashion feasible feature field find fit fix
    flexibility flexible focus follow form format formulate forth foundation fragment framework fresh fulfil fulfill
    function fundamental fundamentally furnish furthermore gain gather generate get give go goal good grant grasp
    great group guidance guide guideline handle handling happen help helpful highlight hint hold host idea
    identification identify illustrate illustration immediate immediately implement implementation implication imply
    importance important importantly improve improvement incorporate incorporation indicate indication indicator
    individual individually inform information informative inherent initiate initiation inquire insert insight
    inspect inspection instance instantly instruct instruction integral integrate integration intend intent
    intention interact interaction interest interested interesting interface interpret interpretation introduce
    introduction investigate investigation involve involvement item job keen keep know knowledge lay lead leading
    learn learner let level leverage lie like link locate location look maintain maintenance make manage management
    manipulate manipulation manner master material mean meaning means mechanism meet mention merely message
    methodology mind modification modify moment monitor motivate name namely natural naturally necessary necessitate
    necessity need notable notably note notice notify notion obtain obtainment occasion occur offer operate
    operation opportunity opt option order organise organization organize orient outline overall overview own part
    participate participation particular particularly pass pattern people perform performance period permission
    permit person personal perspective pertain pertinent phase pick piece place plan platform play point portion
    possess possession possibility post potential practical practice practitioner precede prefer preferable
    preference preparation prepare presence present presentation preserve press primarily primary principle probable
    procedure proceed process procure produce product production professional proficient programme progress project
    prominent promote proper properly property proposal propose provide provision purpose pursue put question range
    reach read readily ready real realise realize realm reason recall receive recognise recognize recommend
    recommendation refer reference reflect regard register registration relate relation relationship relevance
    relevant reliable rely remain render replicate report represent representation request require requirement
    research reserve resort resource respect respective respectively respond response responsibility responsible
    result retain retrieval retrieve return reveal review role route run satisfy scenario scheme scope see seek seem
    select selection send sense separately sequence series serve service session set setting setup shape share show
    side sign significance significant significantly signify situate situation skill slightly smooth smoothly solve
    sort source space speak special specialize specific specifically specification specify spend stage stand
    standard state statement status stay step storage store straight straightforward strategy strength stress strive
    structure structured study style subject submit subsequent succeed successful successfully suffice sufficient
    suggest suggestion suit suitability suitable summarize summary supply support supportive suppose surround
    sustain tackle tailor take talk target task technique technology tell tend term theme thing think thorough
    thoroughly thought thoughtful tool topic track transition treat trial try turn tutorial type typical undergo
    underlie underlying understand understanding undertake usable usage useful user utilise utility utilization
    utilize valuable value variation variety various vary version view visit visualize vital way wide wish word work
    working world worth write writing yield
    """
)
_WEIGHTY: Final = _stems(
    """
    document documentation guide code library community
    input output mode path separately exactly drop pool prompt inherit
    absent apart arbitrary archive audio automatic bad best block boolean break briefly broken bypass
    cache circumvent clear close column compile compress constant copy
    deactivate decode decompress decrease delete deny deploy deprecated destroy difficulty diminish
    disable discard discontinue disregard distinct diverse download drop dynamic empty encode encrypt
    end entire equal erase exception exclude export external fail false fast field
    filter final finish first fixed forbid forget former formerly fresh full global half halt hide highest
    hinder huge identical ignore illegal image impede import impossible incomplete individual initial inner install
    integer internal invalid isolated key large last latest least local lose loss lowest manual
    many massive maximum merge minimize minimum missing native neglect new next number numeric numerical
    obsolete old omit one opposite outside partial pause permanent picture prevent previous prior private
    problem prohibit pull push quick random randomize recent reduce refuse reject remote remove rename
    restrict revert row same separate shorten shrink shuffle single skip slow small sort sound split
    static stop string subsequent table temporary terminate test testing text textual tiny total train training
    transient trouble truncate unavailable undo universal unsafe upload validation vast vision visual
    whole worldwide worse worst wrong
    """
)
"""General, and yet they turn a meaning round or narrow it: never without their like."""

LIGHT: Final = FRAME | ((_GENERAL | _COMMON | {"w:" + root for root in STATEMENT_TERMS}) - _WEIGHTY)
"""General words of telling; the content is in the others."""
