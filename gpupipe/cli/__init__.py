"""The command `gpupipe`: demo, doctor, inspect, score."""
