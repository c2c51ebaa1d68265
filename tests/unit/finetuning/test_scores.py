"""Exact match and F1 are what the rules of SQuAD give by hand."""

import pytest

from experiments.finetuning.scores import Scores, exact_match, f1, score, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The Grey Hill!", ["grey", "hill"]),
        ("an  apple,\ta pear and the anthem", ["apple", "pear", "and", "anthem"]),
        ("St. John's-wort", ["st", "johnswort"]),  # punctuation goes before words are parted
        ("2,300 inhabitants", ["2300", "inhabitants"]),
        ("a.an.the", ["aanthe"]),
        ("“quoted”", ["“quoted”"]),  # only ASCII punctuation goes
        ("The", []),
    ],
)
def test_words_that_count(text, words):
    assert words_of(text) == words


@pytest.mark.parametrize(
    ("prediction", "answers", "matches", "by_hand"),
    [
        ("Ada Merrow", ["the engineer Ada Merrow", "Ada Merrow"], True, 1.0),
        ("engineer Ada Merrow", ["Ada Merrow"], False, 2 * (2 / 3) * 1 / (2 / 3 + 1)),
        ("the light of the tower", ["light"], False, 2 * (1 / 3) * 1 / (1 / 3 + 1)),
        ("of of of", ["of of"], False, 2 * (2 / 3) * 1 / (2 / 3 + 1)),  # a word counts as often as both have it
        ("a granite tower", ["tower of granite"], False, 2 * 1 * (2 / 3) / (1 + 2 / 3)),  # order does not count
        ("sheep", ["fish", "birds"], False, 0.0),
        ("", ["fish"], False, 0.0),
        ("the", ["a"], True, 0.0),  # no words on either side: equal, but none in common
    ],
)
def test_a_prediction_is_scored_by_its_best_answer(prediction, answers, matches, by_hand):
    assert exact_match(prediction, answers) is matches
    assert f1(prediction, answers) == pytest.approx(by_hand)


def test_scores_are_means_in_percent():
    scores = score(["granite", "grey hills", "x", "Y"], [["Granite."], ["grey hill", "hill"], ["y"], ["a y"]])
    assert scores == Scores(num_questions=4, exact_match=50.0, f1=pytest.approx((100 + 50 + 0 + 100) / 4))


def test_no_question_scores_nothing():
    assert score([], []) == Scores(0, 0.0, 0.0)


def test_every_prediction_needs_its_answers():
    with pytest.raises(ValueError, match="shorter"):
        score(["a", "b"], [["a"]])
