"""Figures of generation: the speedup over the measured baseline."""

from dataclasses import replace

from specds import GenerationStats


def test_speedup_compares_with_the_shortest_step_without_drafts():
    stats = GenerationStats(num_drafts=3, num_accepted_tokens=6, prefill_s=1.0, total_s=5.0)
    assert stats.speedup == 0
    assert "baseline" not in str(stats)
    for seconds in (2.0, 1.0, 3.0):
        stats.record_baseline_step(seconds)
    assert stats.speedup == 2.0  # 1 + 9 * 1.0 s without drafts
    assert str(stats).endswith("; 2.0 times the baseline")
    slow = replace(stats, baseline_step_s=stats.baseline_step_s / 4)
    assert "(slower; max_nodes=0 decodes without drafts)" in str(slow)
    assert (GenerationStats() + stats).baseline_step_s == 1.0
