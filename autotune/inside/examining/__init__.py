"""What ``autotune doctor`` looks at in a program that trains; see ``measurement/examination``."""
