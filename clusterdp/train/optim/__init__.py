"""The parts of an optimizer step."""
