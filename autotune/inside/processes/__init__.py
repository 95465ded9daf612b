"""The processes that train: how each joins the rig or the config, is led, and how it ends."""
