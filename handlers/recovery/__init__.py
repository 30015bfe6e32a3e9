"""Recovery of the final status of pending transactions whose notification was lost."""
