"""Open-loop replay of request traces: readers, prompts, client, statistics, report."""
