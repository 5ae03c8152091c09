"""The made world of a judge that favours an arm."""

import numpy as np

from benchmarks.learning.judge_world import CAREFUL, measured, table_rows


def test_calibration_undoes_what_the_judge_favours():
    """With a tenth of labels, after 1,500 decisions, a calibrated judge is within 6 % of all labels, a raw one not."""
    params, _ = CAREFUL
    found = {
        learner: np.mean(
            [
                measured(learner, seed=seed, params=params, judge_weight=1.0, questions=1500, labelled=0.1).final
                for seed in (1,)
            ]
        )
        for learner in ("all labels", "judge as it is", "judge calibrated")
    }
    assert found["judge as it is"] < 0.85 * found["all labels"]
    assert found["judge calibrated"] > 0.94 * found["all labels"]


def test_rows_of_the_table():
    """A row for every learner, the shortfall against all labels in percent."""
    params, weight = CAREFUL
    rows = table_rows(seeds=1, questions=60, params=params, judge_weight=weight)
    assert [row["learner"] for row in rows] == ["all labels", "labels alone", "judge as it is", "judge calibrated"]
    assert (rows[0]["final_short"], rows[0]["learning_worst"]) == (0.0, 0.0)
