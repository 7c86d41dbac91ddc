"""The Grafana dashboard against the metrics of the adapters."""

import json
import re
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from specds.integrations import metrics

PATH = Path(__file__).parents[2] / "integrations" / "grafana" / "specds.json"
DASHBOARD = json.loads(PATH.read_text())


def is_read(dashboard):
    """Return whether Grafana's classes, which are generated from its schema, keep each field."""
    return _is_part(dashboard, json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard))))


def _is_part(part, whole):
    if isinstance(part, dict):
        return all(name in whole and _is_part(part[name], whole[name]) for name in part)
    if isinstance(part, list):
        return len(part) == len(whole) and all(map(_is_part, part, whole))
    return part == whole


def test_fields_are_those_of_grafanas_schema():
    register_default_plugins()
    assert is_read(DASHBOARD)
    assert not is_read(DASHBOARD | {"titel": "specds"})
    [source] = DASHBOARD["templating"]["list"]
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["datasource"]["uid"] == f"${source['name']}"
        places = [target["refId"] for target in panel["targets"]]
        assert len(set(places)) == len(places) > 0


def test_expressions_name_every_metric_and_no_other():
    counters = {f"specds:{name}_total" for name, _ in metrics._COUNTERS.values()}
    gauges = {f"specds:{name}" for name, *_ in metrics._GAUGES.values()}
    exported = {*counters, *gauges, "specds:accepted_tokens_total"}
    targets = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
    named = {name for target in targets for name in re.findall(r"specds:\w+", target["expr"])}
    assert named == exported
