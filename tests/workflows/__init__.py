"""The files of .github."""
