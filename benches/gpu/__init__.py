"""Everything that a GPU is asked for, in parts that do not stop each other."""
