"""Open-loop replay of request traces against any OpenAI endpoint: readers, prompts, client, statistics, report."""
