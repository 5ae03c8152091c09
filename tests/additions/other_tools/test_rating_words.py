"""Ratings as people of many languages write them."""

import pytest

from ragbandit.additions.other_tools.rating_words import amount_of, best_in_rating, level_of

YES = "oui Ja Sí sim TAK evet Да はい 是 네 نعم हाँ iyi İyi Хорошо 良い 好 좋아요 جيد अच्छा ✅ ✔️ 👍🏽 richtig DOĞRU"
NO = "non nein no Não nie HAYIR нет いいえ 否 아니요 لا नहीं kötü YANLIŞ плохо 悪い 差 나쁨 سيئ बुरा ❌ ✗ 👎 falsch"


@pytest.mark.parametrize(("words", "good"), [(YES, True), (NO, False)])
def test_words_of_many_languages(words, good):
    """Words for good and bad are read whatever their language, case and variant."""
    assert {word: amount_of(word) for word in words.split()} == dict.fromkeys(words.split(), good)


def test_levels_of_surveys():
    """Levels of agreement and satisfaction are qualities from 0 to 1."""
    texts = ["Strongly agree", "Satisfait", "teils-teils", "Discordo", "とても不満", "कुछ नहीं"]
    assert [*map(level_of, texts)] == [1.0, 0.75, 0.5, 0.25, 0.0, None]


def test_numbers_with_stars_and_the_best_rating():
    """4 stars and 4/5 are the number, and 4/5 names the best one; other words and n/a are no rating."""
    assert [*map(amount_of, ["5 stars", "4/5", "3,5 Sterne", "3 out of 5", "★★★☆☆", "4つ星"])] == [5, 4, 3.5, 3, 3, 4]
    assert [*map(best_in_rating, ["4/5", "3 out of 10", "4 stars", 4])] == [5.0, 10.0, None, None]
    assert [*map(amount_of, ["n/a", "maybe", "4/5/6", ""])] == [None] * 4
