"""What we do when something happened: the facts, the pure rules, and the single consumers."""
