"""GPUs and memory of this machine: which there are, who owns their memory, and what to do when it runs out."""
