"""Tables of common facts."""

__all__ = [
    "CAPITALS",
    "CHEMISTRY",
    "COLOUR_OF",
    "CONTINENT_OF",
    "DAYS",
    "HOME_OF",
    "LEGS",
    "MONTH_DAYS",
    "OPPOSITES",
    "PAST",
    "PLANETS",
    "SIDES",
    "SOUNDS",
    "UNITS",
    "YOUNG",
    "number_words",
]


def _pairs(text: str) -> dict[str, str]:
    """Read ``left: right`` pairs that are separated by commas or line ends."""
    entries = text.replace("\n", ",").split(",")
    split = (entry.split(":") for entry in entries if entry.strip())
    return {left.strip(): right.strip() for left, right in split}


CAPITALS = _pairs(
    """Afghanistan: Kabul, Albania: Tirana, Algeria: Algiers, Angola: Luanda
    Argentina: Buenos Aires, Armenia: Yerevan, Australia: Canberra, Austria: Vienna
    Azerbaijan: Baku, Bahrain: Manama, Bangladesh: Dhaka, Belarus: Minsk, Belgium: Brussels
    Bolivia: Sucre, Bosnia: Sarajevo, Botswana: Gaborone, Brazil: Brasilia, Bulgaria: Sofia
    Cambodia: Phnom Penh, Cameroon: Yaounde, Canada: Ottawa, Chad: N'Djamena, Chile: Santiago
    China: Beijing, Colombia: Bogota, Costa Rica: San Jose, Croatia: Zagreb, Cuba: Havana
    Cyprus: Nicosia, Czechia: Prague, Denmark: Copenhagen, Ecuador: Quito, Egypt: Cairo
    Eritrea: Asmara, Estonia: Tallinn, Ethiopia: Addis Ababa, Fiji: Suva, Finland: Helsinki
    France: Paris, Gabon: Libreville, Georgia: Tbilisi, Germany: Berlin, Ghana: Accra
    Greece: Athens, Guatemala: Guatemala City, Guinea: Conakry, Haiti: Port-au-Prince
    Honduras: Tegucigalpa, Hungary: Budapest, Iceland: Reykjavik, India: New Delhi
    Indonesia: Jakarta, Iran: Tehran, Iraq: Baghdad, Ireland: Dublin, Italy: Rome
    Jamaica: Kingston, Japan: Tokyo, Jordan: Amman, Kazakhstan: Astana, Kenya: Nairobi
    Kuwait: Kuwait City, Laos: Vientiane, Latvia: Riga, Lebanon: Beirut, Liberia: Monrovia
    Libya: Tripoli, Lithuania: Vilnius, Luxembourg: Luxembourg, Madagascar: Antananarivo
    Malawi: Lilongwe, Malaysia: Kuala Lumpur, Mali: Bamako, Malta: Valletta, Mexico: Mexico City
    Moldova: Chisinau, Monaco: Monaco, Mongolia: Ulaanbaatar, Montenegro: Podgorica
    Morocco: Rabat, Mozambique: Maputo, Myanmar: Naypyidaw, Namibia: Windhoek, Nepal: Kathmandu
    New Zealand: Wellington, Nicaragua: Managua, Niger: Niamey, Nigeria: Abuja
    North Korea: Pyongyang, North Macedonia: Skopje, Norway: Oslo, Oman: Muscat
    Pakistan: Islamabad, Panama: Panama City, Paraguay: Asuncion, Peru: Lima
    Philippines: Manila, Poland: Warsaw, Portugal: Lisbon, Qatar: Doha, Romania: Bucharest
    Russia: Moscow, Rwanda: Kigali, Saudi Arabia: Riyadh, Senegal: Dakar, Serbia: Belgrade
    Singapore: Singapore, Slovakia: Bratislava, Slovenia: Ljubljana, Somalia: Mogadishu
    South Africa: Pretoria, South Korea: Seoul, Spain: Madrid, Sri Lanka: Colombo
    Sudan: Khartoum, Sweden: Stockholm, Switzerland: Bern, Syria: Damascus, Taiwan: Taipei
    Tanzania: Dodoma, Thailand: Bangkok, Tunisia: Tunis, Turkey: Ankara, Uganda: Kampala
    Ukraine: Kyiv, United Kingdom: London, United States: Washington, Uruguay: Montevideo
    Uzbekistan: Tashkent, Venezuela: Caracas, Vietnam: Hanoi, Yemen: Sanaa, Zambia: Lusaka
    Zimbabwe: Harare"""
)

_CONTINENTS = {
    "Europe": """Albania Austria Belarus Belgium Bulgaria Croatia Czechia Denmark Estonia Finland
        France Germany Greece Hungary Iceland Ireland Italy Latvia Lithuania Malta Norway Poland
        Portugal Romania Serbia Slovakia Slovenia Spain Sweden Switzerland Ukraine""",
    "Asia": """Afghanistan Bangladesh Cambodia China India Indonesia Iran Iraq Japan Jordan
        Kazakhstan Kuwait Laos Malaysia Mongolia Myanmar Nepal Oman Pakistan Philippines Qatar
        Singapore Syria Thailand Vietnam Yemen""",
    "Africa": """Algeria Angola Botswana Cameroon Chad Egypt Eritrea Ethiopia Gabon Ghana Kenya
        Liberia Libya Madagascar Malawi Mali Morocco Mozambique Namibia Niger Nigeria Rwanda
        Senegal Somalia Sudan Tanzania Tunisia Uganda Zambia Zimbabwe""",
    "South America": """Argentina Bolivia Brazil Chile Colombia Ecuador Paraguay Peru Uruguay
        Venezuela""",
    "North America": "Canada Cuba Guatemala Haiti Honduras Jamaica Mexico Nicaragua Panama",
}
CONTINENT_OF = {
    country: continent for continent, names in _CONTINENTS.items() for country in names.split()
}

COLOUR_OF = _pairs(
    """the sky: blue, grass: green, a banana: yellow, snow: white, coal: black, blood: red
    a lemon: yellow, the sun: yellow, a tomato: red, a carrot: orange, milk: white
    a strawberry: red, a cucumber: green, chocolate: brown, a pumpkin: orange, the sea: blue
    a flamingo: pink, a frog: green, ketchup: red, an emerald: green, a ruby: red, salt: white
    a sapphire: blue, a leaf: green, a raven: black, a cherry: red, an elephant: grey
    a polar bear: white, lavender: purple, gold: yellow, mustard: yellow, a pea: green"""
)
YOUNG = _pairs(
    """dog: puppy, cat: kitten, cow: calf, horse: foal, sheep: lamb, goat: kid, pig: piglet
    duck: duckling, goose: gosling, hen: chick, frog: tadpole, bear: cub, lion: cub, tiger: cub
    deer: fawn, kangaroo: joey, swan: cygnet, owl: owlet, rabbit: kit, fox: cub, whale: calf
    elephant: calf, seal: pup, wolf: pup, eagle: eaglet, hare: leveret, butterfly: caterpillar"""
)
SOUNDS = _pairs(
    """dog: barks, cat: meows, cow: moos, horse: neighs, sheep: bleats, pig: oinks, duck: quacks
    lion: roars, bee: buzzes, snake: hisses, wolf: howls, owl: hoots, frog: croaks, bird: sings
    mouse: squeaks, rooster: crows, donkey: brays, elephant: trumpets, goose: honks"""
)
OPPOSITES = _pairs(
    """hot: cold, big: small, up: down, left: right, day: night, black: white, open: closed
    fast: slow, old: young, new: old, good: bad, happy: sad, light: dark, wet: dry, full: empty
    hard: soft, high: low, long: short, loud: quiet, rich: poor, strong: weak, early: late
    near: far, first: last, true: false, yes: no, on: off, in: out, start: end, clean: dirty
    thick: thin, heavy: light, love: hate, buy: sell, push: pull, win: lose, north: south
    east: west, summer: winter, tall: short, wide: narrow, sweet: sour, deep: shallow, alive: dead
    always: never, begin: end, cheap: expensive, easy: difficult, inside: outside, more: less
    sharp: blunt, rough: smooth, cold: hot, small: big, down: up, right: left, night: day
    slow: fast, sad: happy, dark: light, dry: wet, low: high, false: true, south: north
    west: east"""
)
UNITS = {
    "seconds in a minute": "60",
    "minutes in an hour": "60",
    "hours in a day": "24",
    "days in a week": "7",
    "months in a year": "12",
    "days in a year": "365",
    "weeks in a year": "52",
    "years in a decade": "10",
    "years in a century": "100",
    "metres in a kilometre": "1000",
    "centimetres in a metre": "100",
    "millimetres in a centimetre": "10",
    "grams in a kilogram": "1000",
    "kilograms in a tonne": "1000",
    "millilitres in a litre": "1000",
    "inches in a foot": "12",
    "feet in a yard": "3",
    "bits in a byte": "8",
    "cents in a dollar": "100",
    "eggs in a dozen": "12",
    "degrees in a circle": "360",
    "degrees in a right angle": "90",
    "letters in the alphabet": "26",
    "players in a football team": "11",
    "strings on a violin": "4",
    "seasons in a year": "4",
    "planets in the solar system": "8",
    "continents on Earth": "7",
    "colours in a rainbow": "7",
    "squares on a chess board": "64",
    "wheels on a bicycle": "2",
    "wheels on a car": "4",
    "fingers on a hand": "5",
}
LEGS = _pairs(
    """dog: 4, cat: 4, horse: 4, spider: 8, bird: 2, ant: 6, bee: 6, snake: 0, fish: 0, cow: 4
    human: 2, duck: 2, octopus: 8, crab: 10, elephant: 4, butterfly: 6, chicken: 2, frog: 4"""
)
SIDES = _pairs(
    """triangle: 3, square: 4, rectangle: 4, pentagon: 5, hexagon: 6, heptagon: 7, octagon: 8
    nonagon: 9, decagon: 10"""
)
CHEMISTRY = _pairs(
    """hydrogen: H, helium: He, carbon: C, nitrogen: N, oxygen: O, sodium: Na, iron: Fe, gold: Au
    silver: Ag, copper: Cu, lead: Pb, zinc: Zn, tin: Sn, calcium: Ca, potassium: K, chlorine: Cl
    sulfur: S, neon: Ne, lithium: Li, magnesium: Mg, aluminium: Al, silicon: Si, mercury: Hg"""
)
PAST = _pairs(
    """go: went, see: saw, eat: ate, drink: drank, write: wrote, read: read, run: ran, come: came
    take: took, give: gave, find: found, think: thought, buy: bought, bring: brought, sing: sang
    swim: swam, speak: spoke, know: knew, make: made, have: had, be: was, do: did, say: said
    sleep: slept, fly: flew, drive: drove, begin: began, break: broke, fall: fell, win: won
    lose: lost, sell: sold, tell: told, teach: taught, catch: caught, keep: kept, leave: left"""
)
HOME_OF = _pairs(
    """bee: a hive, bird: a nest, dog: a kennel, horse: a stable, spider: a web, lion: a den
    fish: water, pig: a sty, rabbit: a burrow, ant: an anthill, cow: a barn, king: a palace"""
)
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()
MONTH_DAYS = dict(
    zip(
        """January February March April May June July August September October November
        December""".split(),
        "31 28 31 30 31 30 31 31 30 31 30 31".split(),
        strict=True,
    )
)

_ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
fifteen sixteen seventeen eighteen nineteen""".split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def number_words(number: int) -> str:
    """A number from 0 to 100 in English words."""
    if number < 20:
        return _ONES[number]
    if number == 100:
        return "one hundred"
    ten = _TENS[number // 10 - 2]
    return ten if number % 10 == 0 else f"{ten}-{_ONES[number % 10]}"
