"""What autotune does on a GPU, from outside: by its commands, its JSON and programs' prints."""
