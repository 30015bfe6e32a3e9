"""Message handlers: the facts, the pure rules, the queries, and the single consumers."""
