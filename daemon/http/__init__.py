"""HTTP, served by separate processes: they open the store read-only and share its pages, not the writer's GIL."""
