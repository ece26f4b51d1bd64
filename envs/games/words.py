"""The words of `games/wordle-v0`, by length: common English words in lower case, no plurals of
shorter ones, no names. They are both what may be hidden and what may be guessed.
"""

from __future__ import annotations

_FOUR = """
able acid aunt away baby back ball band bank barn base bath bead beam bean bear beef bell belt
bend bird bite blow blue boat body boil bold bone book boot born bowl brim bulk bull burn bush
busy cake calm camp card care cart cash cave chef chin chip clay clip club coal coat code coin
cold cook cool cope cord corn crab crew crop cube curl dark dawn deep deer desk dirt dish dive
dock door dove drag draw drum dual dust duty earn east easy echo edge envy exit face fact fade
farm fast fern film find fire firm fish flag flat flow foam fold folk food foot fork form fort
four frog fuel full gate gift girl glad glow glue goal goat gold gown grab gray grid grip grow
gulf hair half hall hand harm hawk heat herb hero hide high hill hint hold hole home hood hook
horn host hour hunt idea inch iron item jail jazz joke jump junk just keen king kite knee knot
lace lake lamb lamp land leaf left lens life lift limb lime line lion list loaf lock loud luck
lung mail malt mask mate maze meal milk mind mint mist moon moth myth navy neck nest noon nose
oath obey open oven pace palm park path peak pear pine plan plow plum poem pond pure quay quiz
rack rail rain rice ride ring road rock roof room root rope ruby rust safe sail salt sand seal
seed ship shoe silk skin slow snow soap sock soil song soup spin star stem swan tail tale team
tent tide time tool town tray tree tuna turf twig unit vase vest view vine wall warm wave weld
west wide wild wind wine wing wolf wood word yard yarn year zone
"""
_FIVE = """
about acorn actor adapt adult agent album alert alien alive alley amber angel anger angle ankle
apart apple apron arena arrow aside asset atlas attic audio avoid awake badge bagel baker basic
basil batch beach beard beast begin belly bench berry birth black blade blame blank blast blaze
bleak blend bless blind block blood bloom blunt board boast bonus booth brain brake brand brass
brave bread break brick bride brief bring brisk broad broom brown brush build bunch cabin cable
camel canal candy cargo carve catch cause cedar chain chair chalk charm chase cheap check cheek
cheer chess chest chief child chill choir claim clash class clean clear clerk cliff climb clock
close cloth cloud clown coach coast cobra comic coral couch cough court cover crane crash cream
creek crest crime crisp cross crowd crown crust curve cycle daily dairy dance delay depth diary
dizzy donor doubt dough dozen draft drain drama dream dress drift drill drink drive eager eagle
early earth elbow elder enemy enjoy enter equal error event exact extra fable faith fancy favor
feast fence ferry fever fiber field fifth final flame flash fleet flesh float flock flood floor
flour fluid flute focus force forge forty found frame fresh front frost fruit funny ghost giant
glass globe glory glove grace grade grain grand grape graph grass grave great green greet grief
grill groan group guard guess guest guide habit happy harsh haste hatch heart heavy hedge hello
hinge hobby honey honor horse hotel house human humor hurry ideal image index inner irony ivory
jelly jewel joint judge juice knife knock label labor large laser laugh layer learn lemon level
light limit linen liver local logic loyal lucky lunch magic major maple march marsh match mayor
medal melon mercy metal meter minor model money month moral motor mount mouse mouth movie music
nerve never night noble noise north novel nurse ocean offer olive onion opera orbit order organ
other otter ounce owner paint panel paper party pasta patch pause peace pearl pedal phase phone
photo piano piece pilot pitch pizza place plain plane plant plate plaza point polar pouch pound
power press price pride prize proof proud pupil queen quest quick quiet quilt quote radar radio
ranch range rapid raven razor reach ready rebel reply ridge rifle right rinse rival river roast
robin robot rough round route royal rural salad sauce scale scarf scene scent scout screw seven
shade shake shape share shark sharp sheep sheet shelf shell shift shine shirt shock shore short
shout siege sight skill skirt slate sleep slice slope smart smell smile smoke snake solar solid
sound south space spare spark speak spear speed spice spine spoon sport spray squad stack staff
stage stair stamp stand start steam steel steep stone storm story stove straw sugar sunny swamp
sweet swift sword table thank thick thief thing thorn throw thumb tiger tight title toast token
tooth torch total tower track trade trail train trash treat trend trial tribe trick truck trunk
trust truth tulip twist uncle under union upper urban usual valid value vapor vault verse video
virus visit vital voice wagon waste watch water whale wheat wheel whole widow width witch woman
world worry wound wrist yacht young youth zebra
"""
_SIX = """
accent advice almond anchor animal annual answer arctic arrive artist asleep august author
autumn ballet bamboo banana banker barley barrel basket battle beaver beetle belief bishop
blouse border borrow bottle bottom branch breath breeze bridge bright broken bronze bubble
bucket budget butter button cactus camera canyon carbon carpet carrot castle cattle cellar
cement cereal cheese cherry choice chosen church cinema circle circus citrus clever clinic
closet coffee collar colony column copper corner cotton county cousin cradle crater cuckoo
custom dagger damage danger debate decade defeat degree desert detail device dinner divide
doctor dollar donkey double dragon drawer driver eleven empire energy engine escape estate
fabric factor family farmer father fellow figure finger flavor flight flower forest fossil
fourth freeze friend frozen future galaxy garage garden garlic gather gentle ginger global
golden gospel guitar hammer handle harbor health helmet hollow humble hunger hunter hybrid
impact injury insect island jacket jersey jigsaw jungle junior kettle kidney kitten ladder
launch lawyer leader legend lesson letter linear liquid lizard locker lonely magnet manner
marble margin market master meadow memory mentor middle mirror modern moment monkey mother
motion museum mutual napkin nation native nature needle noodle normal notice number object
office orange orchid oxygen oyster palace parade parent parrot pastry peanut pencil pepper
person pillow pirate planet player plenty pocket poetry poison police polish potato powder
prayer prince profit purple puzzle rabbit racket reason record remedy rescue resort result
ribbon rocket rubber saddle safety salmon school season second secret senate shadow shield
shovel signal silver simple singer sister smooth soccer spider spirit spring square stable
statue strand stream street string sudden summer sunset supper switch symbol talent target
temple tennis throat throne ticket timber tissue tomato tongue travel treaty tunnel turkey
turtle vacuum valley velvet vessel violin vision volume walnut wealth weapon window winter
wisdom wizard wonder worker yellow
"""

WORDS = {4: tuple(_FOUR.split()), 5: tuple(_FIVE.split()), 6: tuple(_SIX.split())}
"""Length -> words, in alphabetical order."""
