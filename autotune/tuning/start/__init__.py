"""Start: get a program to train in a rig for the first time, or say why it does not."""
