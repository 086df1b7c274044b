"""What the operating system gives and takes: memory, signals."""
