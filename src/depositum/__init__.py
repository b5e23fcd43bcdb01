"""depositum."""
