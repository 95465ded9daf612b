"""Start: what a program does before it trains, and what it takes for it to train in a rig."""
