"""What the first steps of a training learn, and how that compares."""
