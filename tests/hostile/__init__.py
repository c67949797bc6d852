"""What hostile inputs and folders may do: be refused in a sentence, and nothing else."""
