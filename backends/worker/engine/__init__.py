"""What the engine's process runs: the scheduler and all it decides, pure, and the loop around it."""
