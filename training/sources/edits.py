"""What an edit does to a caption: negates it, replaces or moves its words, or rephrases a part.

Both texts share most words, and differ in meaning by little or by much.
"""

import re
from collections.abc import Callable
from random import Random

TRIES = 8  # to find an edit that fits a caption

# Words of one family stand in the same places, with other meanings.
LIVING = [
    ["man", "woman", "boy", "girl", "person", "guy", "lady", "child", "kid"],
    ["men", "women", "boys", "girls", "people", "children", "kids"],
    ["dog", "cat", "horse", "puppy", "animal", "bird"],
    ["dogs", "cats", "horses", "animals", "birds"],
]
THINGS = [
    ["guitar", "piano", "violin", "drum", "flute", "instrument", "keyboard"],
    ["car", "bus", "truck", "train", "vehicle", "van"],
    ["bike", "bicycle", "motorcycle", "skateboard", "scooter", "unicycle"],
    ["street", "road", "sidewalk", "park", "field", "yard", "beach", "forest"],
    ["water", "river", "lake", "pool", "ocean", "sea"],
    ["ball", "frisbee", "stick", "toy", "rope"],
]
COLOURS = ["black", "white", "red", "blue", "green", "yellow", "brown", "orange", "pink"]
COLOURS += ["purple", "gray"]
SIZES = ["young", "old", "little", "small", "big", "large"]
OTHERS = [
    COLOURS,
    SIZES,
    ["running", "walking", "jumping", "standing", "sitting", "sleeping", "lying"],
    ["playing", "holding", "throwing", "catching", "kicking"],
    ["riding", "driving", "pushing", "pulling"],
    ["eating", "cooking", "drinking", "cutting", "preparing"],
    ["talking", "singing", "smiling", "laughing", "shouting"],
    ["climbing", "swimming", "dancing", "skating", "surfing", "skiing"],
    ["looking", "pointing", "staring", "watching"],
    ["two", "three", "four", "several", "some", "many"],
    ["shirt", "jacket", "hat", "dress", "coat", "suit"],
    ["table", "chair", "bench", "bed", "couch"],
    ["on", "under", "near", "behind", "in", "over"],
]
FAMILY = {word: family for family in [*LIVING, *THINGS, *OTHERS] for word in family}
NOUNS = {word for family in [*LIVING, *THINGS] for word in family}
DESCRIBED = {*LIVING[0][:6], *LIVING[1], *LIVING[2], *LIVING[3]}
DESCRIBING = {*COLOURS, *SIZES, "asian", "blond", "blonde", "bearded", "bald", "tall", "elderly"}
DESCRIBING |= {"male", "female", "caucasian"}
ADDED = ["young", "old", "little", "tall", "happy", "brown", "black", "large"]
DETERMINERS = {
    "a": ["The", "One"],
    "an": ["The", "One"],
    "the": ["A", "Some"],
    "two": ["The two", "A couple of", "Some"],
    "three": ["Some", "A group of", "Two"],
    "some": ["Many", "The"],
    "several": ["Some", "A few"],
}

DETERMINER = re.compile(rf"({'|'.join(DETERMINERS)}) ", re.IGNORECASE)
SINGLE = re.compile(r"^(A|An|The|One) ")
COUNTED = re.compile(r"^(Two|Three|Some|Several|Many|Four) ")
# the subject, is or are, what it is doing, and the rest
DOING = re.compile(
    r"((?:A|An|The|One|Two|Three|Some|Several|Many|Four)\b[^,.]*?) (is|are) (\w+ing)\b(.*)$"
)
PART = re.compile(r" (in|on|at|with|near|by|while|wearing|for|through|as|and) ")
LEAST_CHARACTERS_LEFT = 19  # of a caption that is cut at one of these
PLACE = re.compile(r" (in|on|with|near) (a|an|the) [\w ]+$")

Edit = Callable[[str, Random], str | None]


def edit(caption: str, draw: Random) -> str | None:
    """The caption after one edit that is drawn; None where none that was tried fits it."""
    for _ in range(TRIES):
        (change,) = draw.choices(list(EDITS), list(EDITS.values()))
        changed = change(caption, draw)
        if changed and changed != caption:
            return changed
    return None


def negate(caption: str, draw: Random) -> str | None:
    """A man is running: is not running, There is no man running, or Nobody is running."""
    found = DOING.match(caption)
    if not found:
        return None
    subject, verb, doing, rest = found.groups()
    kind = draw.randrange(3)
    if kind == 0:
        return f"{subject} {verb} not {doing}{rest}"
    if kind == 2:
        return f"Nobody is {doing}{rest}"
    if verb == "are":
        return f"There are no {COUNTED.sub('', subject)} {doing}{rest}".replace("no The", "no")
    subject = SINGLE.sub("", subject)
    return f"There is no {_lower(subject)} {doing}{rest}"


def state_existence(caption: str, _: Random) -> str | None:
    """A man is running: There is a man running."""
    found = DOING.match(caption)
    if not found or found[1].startswith("The "):
        return None
    subject, verb, doing, rest = found.groups()
    return f"There {verb} {_lower(subject)} {doing}{rest}"


def move_place(caption: str, _: Random) -> str | None:
    """A man is eating rice in the park: A man, who is in the park, is eating rice."""
    found = DOING.match(caption)
    place = found and PLACE.search(found[4])
    if not found or not place or place.start() < 1:
        return None
    subject, verb, doing, rest = found.groups()
    return f"{subject}, who {verb} {place[0].strip()}, {verb} {doing}{rest[: place.start()]}"


def replace_determiner(caption: str, draw: Random) -> str | None:
    """A man: The man, or One man."""
    found = DETERMINER.match(caption)
    if not found:
        return None
    return f"{draw.choice(DETERMINERS[found[1].lower()])} {caption[found.end() :]}"


def replace_word(caption: str, draw: Random, *, count: int = 1) -> str | None:
    """A man in red: A woman in red; a word becomes another one of its family."""
    words = caption.split(" ")
    spots = [spot for spot, word in enumerate(words) if _bare(word) in FAMILY]
    if len(spots) < count:
        return None
    for spot in draw.sample(spots, count):
        old = words[spot].strip(".,")
        new = draw.choice([word for word in FAMILY[old.lower()] if word != old.lower()])
        words[spot] = words[spot].replace(old, new.capitalize() if old[0].isupper() else new)
    return " ".join(words)


def replace_two_words(caption: str, draw: Random) -> str | None:
    """A man in red: A woman in blue."""
    return replace_word(caption, draw, count=2)


def swap_nouns(caption: str, draw: Random) -> str | None:
    """A man walks a dog: A dog walks a man."""
    words = caption.split(" ")
    spots = [spot for spot, word in enumerate(words) if _bare(word) in NOUNS]
    if len(spots) < 2:
        return None
    one, other = draw.sample(spots, 2)
    first, second = words[one].strip(".,"), words[other].strip(".,")
    if first.lower() == second.lower():
        return None
    words[one] = words[one].replace(first, second)
    words[other] = words[other].replace(second, first)
    return " ".join(words)


def drop_description(caption: str, draw: Random) -> str | None:
    """A young man: A man."""
    words = caption.split(" ")
    last = len(words) - 1
    spots = [
        i for i, word in enumerate(words) if i < last and word.strip(",").lower() in DESCRIBING
    ]
    if not spots:
        return None
    spot = draw.choice(spots)
    del words[spot]
    if spot == 0:
        words[0] = words[0].capitalize()
    return " ".join(words)


def add_description(caption: str, draw: Random) -> str | None:
    """A man: A young man."""
    words = caption.split(" ")
    spots = [i for i, word in enumerate(words) if i and word.strip(",").lower() in DESCRIBED]
    if not spots:
        return None
    words.insert(draw.choice(spots), draw.choice(ADDED))
    return " ".join(words)


def cut(caption: str, draw: Random) -> str | None:
    """A young man is running in the park: A young man is running."""
    spots = [part.start() for part in PART.finditer(caption)]
    spots = [spot for spot in spots if spot >= LEAST_CHARACTERS_LEFT]
    return caption[: draw.choice(spots)] if spots else None


# how often each is tried, of 24
EDITS: dict[Edit, int] = {
    negate: 4,
    state_existence: 2,
    replace_determiner: 2,
    replace_word: 4,
    replace_two_words: 2,
    drop_description: 2,
    add_description: 1,
    cut: 3,
    swap_nouns: 3,
    move_place: 1,
}


def _bare(word: str) -> str:
    return word.strip(".,").lower()


def _lower(subject: str) -> str:
    return subject[0].lower() + subject[1:]
