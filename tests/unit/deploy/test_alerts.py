"""deploy/prometheus/alerts.yaml: each rule fires on what it is for, and none where all is well; by promtool itself."""

import shutil
import subprocess

import pytest
import yaml

from docs.generate.alerts import RULES

PROMTOOL = shutil.which("promtool")
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")

#: series of a service at which all is well, and which everything below changes
WELL = {
    "ragbandit_ledger_readable": "1+0x100",
    'ragbandit_requests_total{path="/v1/route",status="200"}': "0+600x100",
    'ragbandit_requests_total{path="/v1/route",status="503"}': "0+1x100",
    'ragbandit_route_seconds_bucket{le="0.064"}': "0+600x100",
    'ragbandit_route_seconds_bucket{le="1"}': "0+600x100",
    'ragbandit_route_seconds_bucket{le="+Inf"}': "0+600x100",
    'ragbandit_requests_refused_total{queue="questions",reason="wait"}': "0+0x100",
    "ragbandit_policy_faults_total": "0+0x100",
    "ragbandit_policy_rebuilding": "0+0x100",
    "ragbandit_snapshots_refused_total": "0+0x100",
    "ragbandit_decisions_fail_open_total": "0+0x100",
    'ragbandit_workers{queue="learn",state="idle"}': "1+0x100",
    'ragbandit_workers{queue="answer",state="idle"}': "4+0x100",
    "ragbandit_lag_seconds": "2+0x100",
    "ragbandit_totals_behind_seconds": "30+0x100",
    'ragbandit_jobs{queue="answer"}': "3+0x100",
    'ragbandit_worker_jobs_total{queue="learn",result="failed"}': "0+0x100",
    "ragbandit_listener_up": "1+0x100",
    'ragbandit_arm_outcomes_total{arm="a",status="answered"}': "0+100x100",
    'ragbandit_arm_outcomes_total{arm="a",status="failed"}': "0+1x100",
    'ragbandit_arm_answer_seconds_bucket{arm="a",le="10"}': "0+100x100",
    'ragbandit_arm_answer_seconds_bucket{arm="a",le="60"}': "0+100x100",
    'ragbandit_arm_answer_seconds_bucket{arm="a",le="+Inf"}': "0+100x100",
    'ragbandit_arm_offered{arm="a"}': "1+0x100",
    'ragbandit_arm_reward{arm="a"}': "0+80x100",
    'ragbandit_arm_updates_total{arm="a",source="feedback"}': "0+100x100",
    'ragbandit_ledger{place="quarantined"}': "2+0x100",
    'ragbandit_policy_version{state="shadow",version="v2"}': "1+0x100",
    "ragbandit_kill_switch": "0+0x100",
    'ragbandit_sample_ratio_uneven{stage="judged"}': "0+0x100",
    'ragbandit_policy_version{state="champion",version="v1"}': "1+0x100",
    'ragbandit_arm_learning{arm="a",state="steady"}': "1+0x100",
    'ragbandit_learning{state="learning"}': "1+0x100",
    'ragbandit_budget_spent_ratio{scope="tenant",name="acme",period="day"}': "0.5+0x100",
}
#: alert -> what is otherwise; None: the series is missing. Samples are a minute apart, the last is asked for
AMISS = {
    "RagBanditDown": dict.fromkeys(WELL),
    "RagBanditDatabase": {"ragbandit_ledger_readable": "0+0x100"},
    "RagBanditErrors": {'ragbandit_requests_total{path="/v1/route",status="503"}': "0+50x100"},
    "RagBanditSlow": {'ragbandit_route_seconds_bucket{le="0.064"}': "0+500x100"},
    "RagBanditRefusing": {'ragbandit_requests_refused_total{queue="questions",reason="wait"}': "0+1x100"},
    "RagBanditPolicyFaults": {"ragbandit_policy_faults_total": "0+1x100"},
    "RagBanditNoLearner": {'ragbandit_workers{queue="learn",state="idle"}': "0+0x100"},
    "RagBanditLearningLag": {"ragbandit_lag_seconds": "400+0x100"},
    "RagBanditTotalsBehind": {"ragbandit_totals_behind_seconds": "1000+0x100"},
    "RagBanditNoAnswerWorkers": {'ragbandit_workers{queue="answer",state="idle"}': "0+0x100"},
    "RagBanditRedis": {'ragbandit_jobs{queue="answer"}': None},
    "RagBanditQueueLong": {'ragbandit_jobs{queue="answer"}': "2000+0x100"},
    "RagBanditWorkerJobsFail": {'ragbandit_worker_jobs_total{queue="learn",result="failed"}': "0+10x100"},
    "RagBanditListener": {"ragbandit_listener_up": "0+0x100"},
    "RagBanditArmFails": {'ragbandit_arm_outcomes_total{arm="a",status="failed"}': "0+30x100"},
    "RagBanditArmSlow": {'ragbandit_arm_answer_seconds_bucket{arm="a",le="10"}': "0+90x100"},
    "RagBanditArmSuspended": {'ragbandit_arm_offered{arm="a"}': "0+0x100"},
    "RagBanditNoArmHealthy": {"ragbandit_decisions_fail_open_total": "0+1x100"},
    "RagBanditUneven": {'ragbandit_sample_ratio_uneven{stage="judged"}': "1+0x100"},
    "RagBanditDrift": {'ragbandit_arm_learning{arm="a",state="drifting"}': "1+0x100"},
    "RagBanditLearningStuck": {'ragbandit_learning{state="starved"}': "1+0x100"},
    "RagBanditBudget": {'ragbandit_budget_spent_ratio{scope="tenant",name="acme",period="day"}': "0.9+0x100"},
    "RagBanditPromoted": {'ragbandit_policy_version{state="champion",version="v2"}': "_x79 1+0x20"},
    "RagBanditQuarantined": {'ragbandit_ledger{place="quarantined"}': "0+1x100"},
    "RagBanditSnapshots": {"ragbandit_snapshots_refused_total": "0+1x100"},
    "RagBanditKilled": {"ragbandit_kill_switch": "1+0x100"},
    "RagBanditRebuilding": {"ragbandit_policy_rebuilding": "1+0x100"},
}


#: what is well over ten days; other rules look at minutes
HOURS = {
    "ragbandit_ledger_readable": "1+0x240",
    'ragbandit_jobs{queue="answer"}': "0+0x240",
    'ragbandit_arm_updates_total{arm="a",source="feedback"}': "0+100x240",
}
#: the tenth day earns less than the week before
FALLS = {'ragbandit_arm_reward{arm="a"}': "0+80x216 17280+60x24"}


def case(changes, firing, *, interval="1m", at="100m"):
    series = {name: values for name, values in {**WELL, **changes}.items() if values is not None}
    return {
        "interval": interval,
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": at,
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in firing],
            }
        ],
    }


def check(cases, *, every, folder):
    file = folder / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": every, "tests": cases}))
    done = subprocess.run([str(PROMTOOL), "test", "rules", file], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_rule_fires_on_what_it_is_for(tmp_path):
    """Where all is well nothing fires; where one thing is amiss its rule fires and no other."""
    rules = yaml.safe_load(RULES.read_text("utf-8"))
    assert {rule["alert"] for group in rules["groups"] for rule in group["rules"]} == {*AMISS, "RagBanditRewardFalls"}
    check([case({}, []), *(case(changes, [name]) for name, changes in AMISS.items())], every="1m", folder=tmp_path)
    cases = [
        case({'ragbandit_arm_reward{arm="a"}': "0+80x240"} | HOURS, [], interval="1h", at="240h"),
        case(FALLS | HOURS, ["RagBanditRewardFalls"], interval="1h", at="240h"),
    ]
    check(cases, every="1h", folder=tmp_path)
