import json

import pytest


@pytest.fixture
def run(tmp_path):
    """Of two members. agent1 was killed in the middle of a line, and went on behind it from its last checkpoint."""
    write(tmp_path, "agent0", [result(2, 1.5, remark="calm")], [update(1, 0.1), update(2, 0.2)])
    killed = json.dumps(update(3, 0.3))[:40]
    first = [json.dumps(update(number, 0.1 * number)) for number in (1, 2)]
    lines = [*first, killed + json.dumps(update(3, 0.4, lineage=1)), json.dumps(update(4, 0.5, lineage=1)), '{"updates": 5']
    results = [result(2, "nan"), {**result(3, 0.5), "cut_short": True}, result(4, 0.75, lineage=1)]
    write(tmp_path, "agent1", results, lines)
    return tmp_path


def result(updates, fitness, lineage=0, **more):
    config = {"agent": {"seed": 3}, "learning_rate": 1e-3, "advantage": "group_centered"}
    used = {"learning_rate": 2e-3, "ratio_max": "inf", "window": updates}
    standing = {"updates": updates, "version": updates, "lineage": lineage, "done": False, "pid": 77, "timestamp": 1000 + updates}
    return {"fitness": fitness, **used, **standing, "config": config, **more}


def update(updates, loss, lineage=0):
    by_lag = {"0": {"tokens": 10 * updates}}
    return {"updates": updates, "version": updates, "lineage": lineage, "started": 5.0, "trainer/loss": loss, "by_lag": by_lag}


def write(run, member, results, updates):
    ring = run / "population" / member / "ring"
    ring.mkdir(parents=True)
    for file, lines in ((ring.parent / "result.json", results), (ring / "updates.jsonl", updates)):
        file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
