"""Chains that are replicated through NATS JetStream: feeds publish events to a stream, daemons are fed from it."""
