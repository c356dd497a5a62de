"""
The words that synthetic text is made of (floor F1).

Short, common, lower-case English words: with a space before it, each is one token of nearly every byte-pair tokenizer of a real
model, and of the simulator's. Which of them are one token for a given tokenizer is measured, not assumed (core/calibration.py).
"""

from __future__ import annotations

_TEXT = """
the of and to in is was for on that with as it at by from are this be an or his which not have had but he
were one all she who been their has they you can its more her will may also would about than up out into
only some time other there no new what these over such between them first two then so each him use many
after now most where before under very well could used made both through being any even same must part
like because way life year world work here still own last long great small large set number point line
place state house high school water city name group law left right hand side area power during three four
five six seven eight nine ten day days week month years night home family man men woman people child book
word page form field land south north east west river sea island road town park hill lake wood tree leaf
root seed rain snow wind sun moon star sky earth air fire ice stone rock sand gold silver iron steel glass
paper metal oil gas coal salt sugar milk bread meat fish egg rice fruit apple tea coffee wine beer food
meal table chair bed door wall floor roof room window kitchen garden street bridge tower church castle
palace court market shop store bank office station hotel hospital farm mill factory port ship boat train
car bus truck plane bike wheel engine motor machine tool box bag bottle cup plate knife fork bowl pot pan
key lock ring chain rope wire cable pipe tube pump valve gear spring screw nail hammer saw drill brush
paint color red blue green yellow black white brown gray pink orange purple dark light bright heavy soft
hard hot cold warm cool wet dry clean fresh old young big little short tall wide narrow thin thick deep
low fast slow quick early late near far open close closed full empty strong weak rich poor good bad better
best worse worst wrong true false real sure clear free busy ready easy simple common public private local
national foreign human social political military legal medical physical natural general special single
double main major minor total final recent current modern ancient central eastern western southern
northern royal go come get give take make see know think look find want tell ask seem feel try leave call
keep let begin help show hear play run move live believe bring happen write sit stand lose pay meet
include continue learn change lead understand watch follow stop create speak read spend grow walk win
teach offer remember consider appear buy serve send build stay fall cut reach raise pass sell decide
return explain hope develop carry break receive agree support hit produce eat cover catch draw choose
cause require report allow add enter join save fight sign throw fill push pull drop plan turn start end
wait rest sleep wake dream laugh cry smile sing dance jump swim fly drive ride sail climb wash cook burn
freeze melt boil mix pour shake press touch hold kick roll slide bend fold tie hang lift load pack wrap
hide seek search test check count measure weigh compare match sort order list note mark print copy paste
click type edit view map chart graph image photo video film music song sound voice noise radio phone mail
letter post card ticket coin cash price cost value tax fee loan debt bill fund stock share trade deal sale
profit loss income wage job task role duty career boss staff team crew club party union board council
member leader chief head king queen prince lord lady president minister judge lawyer doctor nurse teacher
student player coach actor artist writer author editor poet singer driver pilot captain soldier officer
guard police friend neighbor guest host owner user client customer farmer worker baker hunter father
mother parent son daughter brother sister uncle aunt cousin husband wife baby boy girl kid adult person
body face eye ear nose mouth tooth tongue lip hair skin bone blood heart brain mind soul neck arm leg foot
knee back chest stomach finger animal dog cat horse cow pig sheep goat bird duck chicken wolf bear lion
tiger fox rabbit mouse rat snake frog bee ant spider whale shark flower grass plant forest desert mountain
valley coast beach ocean wave storm cloud thunder weather season summer autumn winter morning evening noon
hour minute second moment past future history science art math physics biology chemistry language culture
religion society economy industry business company firm agency project program system method process model
theory idea concept fact truth lie story tale novel poem scene act chapter section unit item piece bit
block layer level step stage phase cycle loop path route track trail course class grade degree rank score
goal target aim purpose reason effect result impact influence force energy speed rate pressure weight mass
volume size shape length width height depth distance angle edge corner center middle top bottom front rear
inside outside surface base frame structure pattern design style fashion dress shirt coat hat shoe boot
sock glove belt button pocket needle thread cloth cotton wool silk leather rubber plastic fiber fabric
pool bath shower soap towel mirror lamp candle clock bell horn drum flute piano guitar violin band concert
theater museum gallery library campus college university lesson study research essay article journal
magazine news media network internet web site server data file code software computer screen keyboard
memory disk chip robot camera lens signal channel antenna satellite rocket space planet orbit universe
atom cell gene disease pain fever medicine surgery treatment therapy cure health diet exercise sport game
race ball net bat medal prize award honor fame glory pride shame fear anger joy love trust doubt faith
luck chance risk danger safety peace war battle defense army navy shield arrow bow flag border nation
country region province district county village capital empire colony republic kingdom government congress
parliament senate election vote campaign policy reform crisis conflict treaty alliance agreement contract
rule freedom justice trial evidence witness fine penalty sentence appeal decision choice option answer
question problem solution issue matter topic subject object detail feature function property quality
quantity amount sum average ratio percent half third quarter triple dozen hundred thousand million billion
zero plus minus equal above below across along around behind beside beyond despite except onto per since
toward upon within without again almost already always anyway away enough ever forever hardly indeed
instead just later maybe merely mostly nearly never often once perhaps quite rather really seldom simply
sometimes soon therefore though thus today together tomorrow tonight too usually yesterday yet actual
basic broad brief calm certain civil complex correct crucial daily dear direct distant due entire exact
extra fair familiar famous fit flat formal former frequent gentle glad global grand happy huge ideal
internal joint lone loud lucky mad mental mere mild mobile moral mutual nice normal odd official opposite
ordinary original overall patient perfect plain pleasant pleased polite popular positive negative possible
powerful practical present prime proper proud pure quiet random rapid rare raw regional regular relative
relevant remote rough round sad safe secret senior separate serious severe sharp sick significant silent
similar slight smart smooth solid specific stable standard steady strange strict sudden sufficient
suitable super sweet tight tiny tired tough typical unable unique universal unlikely upper urban useful
usual valuable various vast violent visible visual vital whole wild wise wonderful wooden accept access
account achieve address admit adopt advance advice affect afford aid alone amid anchor annual apart apply
arrange arrive aside assess assist assume attach attempt attend attract avoid aware balance ban bar basis
beat became become behave belong bid bind bite blame blow bond boost borrow bound breath broke broken
budget burden burst cap capable capacity capture case cast cease charge charity chase cheap chosen circle
citizen claim classic collect column combine comfort command comment commit complain complete comply
compose compute conduct confirm connect consist constant construct consult consume contact contain content
contest context contrast control convert convince core counter couple courage crash credit criteria critic
crop cross crowd crown curve custom damage deadline dealer decade decline defeat defend define delay
deliver demand deny depend deposit derive describe desire desk destroy detect device devote differ digital
dinner discover discuss display dispute divide division document domain donate draft dramatic drawn drift
drink duration dust earn echo effort elect element emerge emotion employ enable engage enhance enjoy
ensure entry equip error escape establish estimate ethnic evaluate event evident evolve exceed exchange
exclude execute exist expand expect expense expert export expose express extend extent extreme fail
failure favor federal fellow fence festival finance flow focus forget format fortune forward found
fraction gain gap gather gaze gift glance govern grab grant grip gross guess guide habit handle harm hence
hint hire hole holiday honest horizon household hurt identify ignore illegal imagine imply import impose
improve inch increase index indicate infant inform initial injury inner input inquiry insist install
instance insurance intend interest interval invest invite involve isolate keen labor lack laser launch
lawn lay layout lean leap lease least legacy legend liberal license likely limit link liquid literary
locate logic lover lower loyal luxury mainly maintain manage manner margin marine mask master maximum
meaning mechanism medium mention merge message mission mistake mode monitor monster mood motion mount
mystery myth native neat neither nerve nobody nod none nor notion nuclear observe obtain obvious occasion
occupy occur odds offense opera operate opinion oppose organ origin otherwise ought output overcome owe
pace package pair palm panel panic partner patch pause peak peer permit phrase pick pile pitch poll pond
portion portrait pose possess potential poverty praise pray predict prefer prepare preserve pretend
prevent previous prior priority proceed profile promise promote prompt proof propose protect protein
protest prove provide publish pursue quest quote radical rail range reaction react reality recall recipe
record recover reduce refer reflect refuse regard regime regret reject relate release relief rely remain
remark remind remove render rent repair repeat replace reply request rescue reserve resist resolve resort
resource respect respond restore retain retire reveal revenue reverse review reward rhythm rise rival rode
rolling romantic rose routine row rush sacred sake sample satisfy scale scatter scheme scholar scope seal
seat sector secure select sense series session settle shadow shall shell shelter shift shock shoot shore
shot shoulder shut sight skill slip smell smoke snap soil solar solve somebody somehow source spare speech
spell sphere spin spirit split spot spread square squad stair stake stare status steal stem stick stream
stress stretch strike string strip stroke struggle studio stuff submit succeed suffer suggest suit
surprise surround survey survive suspend sustain swear sweep swing switch symbol symptom tail talent tank
tap tape taste tear technique teen temple tend tennis tension term territory text thank theme threat
throat till tip title toe tone torn tour toy trace tradition traffic transfer transform transit translate
travel treat trend trick trip troop tunnel twice twin twist ultimate undergo uniform update upset urge
vary vehicle venture version via vision visit wander warn waste weird welcome whatever whenever whereas
wherever whisper whom whose widely willing wing withdraw wonder worry worth wound yard yield zone
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
"""Distinct; ASCII letters only; at most 12 of them."""
