"""Words that a statement about software may have or leave out where it is told freely, as data: how things are told,
not what is told of. What may go by the closer rules is in `statement_words.py`.
"""

from __future__ import annotations

from typing import Final

from policies.guards.statement_words import stems
from policies.guards.thesaurus import STATEMENT_TERMS

FRAMING: Final = stems(
    """
    ability able access according-to action allow available call capability capable certain class contain data
    designed employ enable exist facilitate following function functionality furnish given have include information
    intended kind manner method offer option order particular possible provide relate related serve set specific
    specified suchlike support task type use utilize various way
    """
) | {
    "n:1", "p:here", "p:it", "p:its", "p:our", "p:their", "p:them", "p:these", "p:they", "p:this", "p:those", "p:we",
    "p:you", "p:your",
}  # fmt: skip
"""Carry another word, or point: so many of them say nothing at all."""

_GENERAL: Final = stems(
    """
    accommodate accompany accomplish accomplishment account accuracy achieve acquire act activity actual adapt
    additionally address adequate adhere adhering adopt advance advantage advice advise affect agree aim align
    allocate analysis analyze answer anticipate appear appearance applicable application apply appoint appreciate
    approach appropriate argument arise arrange arrangement arrive aspect assemble assess assign assist assistance
    associate association assume attach attain attempt attend attention attribute author await aware back base basic
    basically basis bear become behave behavior behaviour belong beneficial benefit bring broad build caliber
    capability capable carry case category cause characteristic choice choose circumstance citation cite clarify
    clear click code collaborate collaborative collective combination combine come comfortable command comment
    common commonly communicate communication compare comparison compatible complement complex component comprehend
    comprehensive comprise compute concentrate concept conceptual concern condition conduct confirm connect
    connection consequence consequently consider considerable consideration consist consistent consistently
    constitute construct construction consult consume contact contemplate content context contribute contribution
    convenient conveniently conversion convey cooperate coordinate correspond correspondingly cover craft creation
    criterion currently customary deal decide decision declare dedicate dedicated deem define definition degree
    deliver demand demonstrate demonstration denote depend depict derive describe description deserve design
    designate desirable desire desired detail detailed determine develop developer development devise devote differ
    dimension direct direction directly discover discovery discuss discussion display distinct distribute
    distribution diverse document don draw dress due duty eager ease easier easily effect effective effectively
    effectiveness efficiency efficient efficiently effort effortless effortlessly elaborate element embody emerge
    emphasize employ employment enable encapsulate encompass encounter encourage engage engagement enhance
    enhancement enjoy ensure entail entire entity enumerate environment equip especially essence essential
    essentially establish establishment etc evaluate evaluation eventually evident evidently exactly examination
    examine exchange execute execution exhibit exist existence expand expect expectation experience experienced
    experiment expert explain explanation explicit explicitly exploit exploration explore expose express expression
    extend extension extensive extent facilitate facility fact factor familiar familiarity familiarize fashion
    feasible feature field file find fit fix flexibility flexible focus follow form format formulate forth
    foundation fragment framework frequent fresh fulfil fulfill function fundamental fundamentally furnish further
    furthermore gain gather general generally generate generation get give go goal good grant grasp great group
    guidance guide guideline handle handling happen help helpful highlight hint hold host idea ideal identification
    identify illustrate illustration immediate immediately impact implement implementation implication imply
    importance important importantly improve improvement incorporate incorporation indicate indication indicator
    individual individually inform information informative inherent initiate initiation inquire insert insight
    inspect inspection instance instantly instruct instruction integral integrate integration intend intent
    intention interact interaction interest interested interesting interface interpret interpretation introduce
    introduction investigate investigation involve involvement issue item job keen keep kind know knowledge lay lead
    leading learn learner let level leverage library lie like likely link list locate location logical look main
    mainly maintain maintenance major make manage management manipulate manipulation manner master material matter
    mean meaning means measure mechanism meet mention merely message methodology mind modification modify module
    moment monitor motivate name namely natural naturally necessary necessitate necessity need notable notably note
    notice notify notion objective obligation obtain obtainment obvious occasion occur offer operate operation
    opportunity opt option optional optionally order organise organization organize orient outcome outline overall
    overview own parameter part participate participation particular particularly partly pass pattern people perform
    performance period permission permit person personal perspective pertain pertinent phase pick piece place plan
    platform play point portion possess possession possibility post potential practical practically practice
    practitioner precede precise precisely prefer preferable preference preparation prepare presence present
    presentation preserve press primarily primary principle prior probable procedure proceed process procure produce
    product production professional proficient programme progress progressive project prominent promote proper
    properly property proposal propose provide provision purpose pursue put quality quantity question randomly range
    reach read readily ready real realise realize realm reason recall receive recognise recognize recommend
    recommendation refer reference reflect regard regarding register registration relate relation relationship
    relevance relevant reliable rely remain removal render replicate report represent representation request require
    requirement research reserve resort resource respect respective respectively respond response responsibility
    responsible result retain retrieval retrieve return reveal review role route run satisfy scenario scheme scope
    seamless search see seek seem select selection send sense separately sequence series serve service session set
    setting setup shape share show side sign significance significant significantly signify similar simpler simply
    situate situation size skill slightly smooth smoothly solution solve sort source space speak special specialised
    specialize specially specific specifically specification specify spend stage stand standard state statement
    status stay step storage store straight straightforward strategy strength stress strive structure structured
    study style subject submit subsequent substantial succeed successful successfully suffice sufficient suggest
    suggestion suit suitability suitable summarize summary supply support supportive suppose sure surround sustain
    tackle tailor take talk tap target task technique technology tell tend term theme thing think thorough
    thoroughly thought thoughtful together tool topic track transition treat trial try turn tutorial type typical
    typically undergo underlie underlying understand understanding undertake unique usable usage useful user utilise
    utility utilization utilize valuable value variation variety various vary version view visit visualize vital way
    whole wide wish word work workflow working works world worth write writing yield
    """
)
_WEIGHTY: Final = stems(
    """
    absent apart arbitrary archive audio automatic bad best block boolean break briefly broken bypass cache
    circumvent clear close code column community compile compress constant copy deactivate decode decompress
    decrease delete deny deploy deprecated destroy difficulty diminish disable discard discontinue disregard
    distinct diverse document documentation download drop dynamic empty encode encrypt end entire equal erase
    exactly exception exclude export external fail false fast field filter final finish first fixed forbid forget
    former formerly fresh full global guide half halt hide highest hinder huge identical ignore illegal image impede
    import impossible incomplete individual inherit initial inner input install integer internal invalid isolated
    key large last latest least library local lose loss lowest manual many massive maximum merge minimize minimum
    missing mode native neglect new next number numeric numerical obsolete old omit one opposite output outside
    partial path pause permanent picture pool prevent previous prior private problem prohibit prompt pull push quick
    random randomize recent reduce refuse reject remote remove rename restrict revert row same separate separately
    shorten shrink shuffle single skip slow small sort sound split static stop string subsequent table temporary
    terminate test testing text textual tiny total train training transient trouble truncate unavailable undo
    universal unsafe upload validation vast vision visual whole worldwide worse worst wrong
    """
)
"""General, and yet they turn a meaning round or narrow it: never without their like."""

LIGHT: Final = FRAMING | ((_GENERAL | STATEMENT_TERMS) - _WEIGHTY)
"""May come and go, a few of them."""
