"""HTTP, served by processes of its own: they open the store read-only and share its pages, not the writer's GIL."""
