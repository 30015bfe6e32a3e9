"""HTTP, in processes of its own: they open the store read-only, beside the writer, and share its pages, not its GIL."""
