"""Estimates of tokens per script, against counts of two tokenizers (Qwen's and Mistral's Tekken)."""

import pytest

from ragbandit.shared.texts.token_estimates import estimated_tokens

CODE = 'for (let i = 0; i < rows.length; i++) { out[rows[i].id] = {"name": rows[i].name, "n": i * 2}; }'
#: script -> text, its tokens by Qwen's tokenizer and by Tekken
COUNTED = {
    "English": ("The committee met on Tuesday to discuss the budget for the coming year.", 14, 14),
    "German": ("Mehrere Mitglieder meinten, dass die Kürzungen den Schulen schaden würden.", 23, 17),
    "Vietnamese": ("Ủy ban đã họp vào thứ Ba để thảo luận về ngân sách cho năm tới.", 18, 21),
    "Chinese": ("委员会星期二开会讨论来年的预算。几位成员认为拟议的削减会损害学校。", 22, 35),
    "Japanese": ("委員会は火曜日に来年度の予算について話し合うために集まりました。", 20, 21),
    "Korean": ("위원회는 화요일에 내년 예산을 논의하기 위해 모였다.", 19, 17),
    "Thai": ("คณะกรรมการประชุมกันในวันอังคารเพื่อหารือเกี่ยวกับงบประมาณสำหรับปีหน้า", 32, 34),
    "Arabic": ("اجتمعت اللجنة يوم الثلاثاء لمناقشة ميزانية العام المقبل.", 14, 15),
    "Hebrew": ("הוועדה התכנסה ביום שלישי כדי לדון בתקציב לשנה הבאה.", 19, 24),
    "Russian": ("Комитет собрался во вторник, чтобы обсудить бюджет на следующий год.", 22, 19),
    "Hindi": ("समिति ने आने वाले वर्ष के बजट पर चर्चा करने के लिए बैठक की।", 55, 21),
    "code": (CODE, 41, 41),
}


@pytest.mark.parametrize("script", COUNTED)
def test_a_text_has_about_the_estimated_tokens(script):
    """The estimate lies between 0.8 times and twice the count of the tokenizer that makes more tokens."""
    text, *counts = COUNTED[script]
    assert 0.8 * max(counts) <= estimated_tokens(text) <= 2.0 * max(counts)


def test_edges():
    """No text has no token; emoji have two each; halves of characters count; long texts are read in one pass."""
    assert estimated_tokens("") == 0
    assert estimated_tokens("😀😀") == 4
    assert estimated_tokens("\ud800") == 1
    assert estimated_tokens("a中" * 400_000) == 500_000
