"""The Grafana dashboard against the metrics of the adapters."""

import json
import re
from pathlib import Path

from specds.integrations import metrics

PATH = Path(__file__).parents[2] / "integrations" / "grafana" / "specds.json"
DASHBOARD = json.loads(PATH.read_text())


def test_expressions_name_every_metric_and_no_other():
    counters = {f"specds:{name}_total" for name, _ in metrics._COUNTERS.values()}
    gauges = {f"specds:{name}" for name, *_ in metrics._GAUGES.values()}
    exported = {*counters, *gauges, "specds:accepted_tokens_total"}
    targets = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
    named = {name for target in targets for name in re.findall(r"specds:\w+", target["expr"])}
    assert named == exported
