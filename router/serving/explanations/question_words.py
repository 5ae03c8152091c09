"""Tables of words: what questions begin with in English and German, and frequent words without a topic."""

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: ways to begin that several words have in common
YES_OR_NO, HOW_MANY = "yes or no", "how many"
#: language -> its frequent words
FUNCTION_WORDS: Final = {
    "English": _words(
        "a about after all an and any are as at be been before but by can could did do does down for from get "
        "had has have he her his how i if in into is it its just made many may me might more most much my no "
        "not of off on one or other our out over please should so some such than that the their them then "
        "there these they this those to under up us use was we were what when where which while who whom "
        "whose why will with would yes you your"
    ),
    "German": _words(
        "aber alle als am an auch auf aus bei beim bin bis bitte da damit darf das dass dein dem den denn der "
        "des die dies diese dieser dieses doch du durch ein eine einem einen einer eines er es für hat haben "
        "hatte ich ihr im in ist ja kann kannst kein keine können man mein meine meinem meinen meiner mich "
        "mir mit muss müssen nach nicht noch nur oder schon sehr sein seine sich sie sind so soll um und uns "
        "unser unsere unter von vor war warum was welche welchem welchen welcher welches wenn wer werden wie "
        "wieso wird wo zu zum zur über"
    ),
    "French": _words("au aux avec ce comment de des du elle est et il je la le les ne où pas pour que qui sur un une"),
    "Spanish": _words("al como con cuál cómo de del dónde el en es la las los no para por que qué quién se un una y"),
}
#: language -> the first word of a question -> how it begins
BEGINNINGS: Final = {
    "English": {word: word for word in ("who", "what", "which", "when", "where", "why", "how")}
    | dict.fromkeys(("whose", "whom"), "who")
    | dict.fromkeys(
        _words("is are was were do does did can could has have had will would should may might must"), YES_OR_NO
    ),
    "German": {word: word for word in ("wer", "was", "wann", "wo", "warum", "wie")}
    | dict.fromkeys(("welche", "welcher", "welches", "welchen", "welchem"), "welche")
    | dict.fromkeys(("wem", "wen", "wessen"), "wer")
    | dict.fromkeys(("wieso", "weshalb"), "warum")
    | dict.fromkeys(
        _words(
            "ist sind war waren hat haben hatte kann kannst können könnte wird werden würde soll sollte darf muss gibt "
            "habe bin"
        ),
        YES_OR_NO,
    ),
}
#: a question may begin with one of these before its question word
PREPOSITIONS: Final = _words(
    "in on at of for from to by with under about auf an aus bei für mit nach seit von zu um ab"
)
#: "how" or "wie" before one of these asks for an amount
AMOUNTS: Final = _words("many much long old far often big large tall high viele viel lange alt weit oft groß hoch")
#: frequent word or first word of a question -> the languages that have it
LANGUAGES_WITH: Final = {
    word: [one for one, known in FUNCTION_WORDS.items() if word in known or word in BEGINNINGS.get(one, ())]
    for word in frozenset[str]().union(*FUNCTION_WORDS.values(), *BEGINNINGS.values())
}
