"""Several machines that search one program together, over one study of Optuna's."""
